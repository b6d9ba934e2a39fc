"""Tools of MCP servers that run as programs beside an environment and speak over their standard streams.

Promises: each environment has servers of its own, started when their tools are first asked for, and ended with it; one
that does not start, or goes away, is an error that says which. Needs the extra `mcp`.
"""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from ....schemas.config.agentic import McpServer
from ....schemas.errors import EnvironmentLoadError
from ....schemas.text import named
from .tool import Tool, function_schema

KEY = "psrl.agentic_rl.mcp_servers"


class McpTool:
    def __init__(self, client: Any, described: Any, repeatable: bool) -> None:
        self._client = client
        self.name, self.repeatable = described.name, repeatable
        self.schema = function_schema(self.name, described.description or "", described.input_schema)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        result = await self._client.call_tool(self.name, dict(arguments))
        text = "\n".join(part.text for part in result.content if part.type == "text")
        if result.is_error:
            raise RuntimeError(text)
        return text


class Server:
    """One program. Its client lives in one task: what opens it must close it."""

    def __init__(self, name: str, program: McpServer) -> None:
        self._name, self._program = name, program
        self._tools: asyncio.Future[list[Tool]] | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def tools(self) -> list[Tool]:
        if self._tools is None:
            self._tools = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(self._tools))
        return await asyncio.shield(self._tools)

    async def close(self) -> None:
        self._stop.set()
        if self._task is not None and self._tools is not None:
            if not self._tools.done():  # it says nothing, and might never
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _live(self, ready: "asyncio.Future[list[Tool]]") -> None:
        from mcp import Client, StdioServerParameters

        program = self._program
        try:
            start = StdioServerParameters(command=program.command, args=list(program.args), env=self._variables())
            async with Client(start) as client:
                listed = (await client.list_tools()).tools
                ready.set_result([McpTool(client, one, program.repeatable) for one in listed])
                await self._stop.wait()
        except EnvironmentLoadError as refusal:
            ready.set_exception(refusal)
        except Exception as error:  # noqa: BLE001  (the library raises anything on a program that fails)
            if not ready.done():
                ready.set_exception(EnvironmentLoadError(f"{KEY}.{self._name} ({program.command}): {named(error)}"))

    def _variables(self) -> dict[str, str]:
        """Raises `EnvironmentLoadError` for one that this process does not have."""
        program = self._program
        if missing := [name for name in program.env_from if name not in os.environ]:
            raise EnvironmentLoadError(
                f"{KEY}.{self._name}.env_from names {', '.join(missing)}, but the cpu workers have no such variable; "
                "allowed: those that are set where `psrl up` is called"
            )
        return {**program.env, **{name: os.environ[name] for name in program.env_from}}


class McpServers:
    def __init__(self, programs: Mapping[str, McpServer]) -> None:
        """Raises `EnvironmentLoadError` where the library is missing."""
        if programs:
            _require_library()
        self._servers = [Server(name, program) for name, program in programs.items()]
        self.repeatable = all(program.repeatable for program in programs.values())

    async def tools(self) -> list[Tool]:
        found = await asyncio.gather(*(server.tools() for server in self._servers))
        return [tool for tools in found for tool in tools]

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))


def _require_library() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise EnvironmentLoadError(f"{KEY} needs the package mcp: pip install 'psrl[mcp]' ({error})") from error
