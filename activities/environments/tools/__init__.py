"""The built-in environment in which the policy calls tools: Python functions, MCP servers, its own code."""
