"""An MCP server for tests: `python -m tests.support.mcp_server`."""

import os

from mcp.server import MCPServer

server = MCPServer("tests")
count = 0


@server.tool()
def count_up(by: int) -> int:
    """Counts, and remembers."""
    global count  # noqa: PLW0603  (the state that each environment has for itself)
    count += by
    return count


@server.tool()
def variable(name: str) -> str:
    """Of its environment."""
    return os.environ.get(name, "")


@server.tool()
def refuse() -> str:
    """Always fails."""
    raise ValueError("not today")


if __name__ == "__main__":
    server.run("stdio")
