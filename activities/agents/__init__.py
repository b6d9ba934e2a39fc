"""Agents from outside: run against a session each, and what the store keeps of the episodes that they play."""
