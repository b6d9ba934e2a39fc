"""The environment `tools`: it runs what the policy calls, and is done when the policy calls nothing.

It gives no reward: that is the reward function's. Its `info` counts the calls, and those that went wrong.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.config.agentic import AgenticSection
from ....schemas.errors import EnvironmentLoadError, nearest
from ....schemas.text import named, shown
from ..environment import Action, Environment, Message, Step, Task, ToolCall
from .code_runner import NAME as CODE_RUNNER
from .code_runner import CodeRunner
from .functions import PythonTool
from .mcp import McpServers
from .tool import BadCall, Tool, as_text, shortened

NAME = "tools"


class ToolEnvironment(Environment):
    def __init__(self, agentic: AgenticSection) -> None:
        """Raises `EnvironmentLoadError`."""
        self._agentic = agentic
        self._own = [
            CodeRunner(agentic.code_runner) if path == CODE_RUNNER else PythonTool(path) for path in agentic.tools
        ]
        self._servers = McpServers(agentic.mcp_servers)
        self._tools: dict[str, Tool] = {}
        self._room = asyncio.Semaphore(agentic.max_parallel_calls)
        self._calls = self._errors = 0
        self.repeatable = all(tool.repeatable for tool in self._own) and self._servers.repeatable

    async def tools(self) -> Sequence[Mapping[str, Any]]:
        return [tool.schema for tool in (await self._found()).values()]

    async def reset(self, task: Task) -> None:
        await self._found()

    async def step(self, action: Action) -> Step:
        if not action.calls:
            return Step(done=True, info=self._counts)
        self._calls += len(action.calls)
        said = await asyncio.gather(*(self._message(call) for call in action.calls))
        return Step(said, info=self._counts)

    async def close(self) -> None:
        await self._servers.close()

    @property
    def _counts(self) -> dict[str, int]:
        return {"tool_calls": self._calls, "tool_errors": self._errors}

    async def _found(self) -> dict[str, Tool]:
        if not self._tools:
            offered: list[Tool] = [*self._own, *await self._servers.tools()]
            for tool in offered:
                if tool.name in self._tools:
                    raise EnvironmentLoadError(f"two tools are called {tool.name!r}; allowed: names that differ")
                self._tools[tool.name] = tool
        return self._tools

    async def _message(self, call: ToolCall) -> Message:
        limits = self._agentic
        async with self._room:
            text = await self._answer(call)
        cut = shortened(text, limits.max_tool_response_length, limits.tool_response_truncate_side)
        return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": cut}

    async def _answer(self, call: ToolCall) -> str:
        """What the tool says, or what went wrong, for the policy to read."""
        try:
            return as_text(await self._result(call))
        except BadCall as fault:
            said = str(fault)
        except TimeoutError:
            said = f"no result within {self._agentic.tool_timeout_s:g} s"
        except Exception as error:  # noqa: BLE001  (the border to user code, which may raise anything)
            said = named(error)
        self._errors += 1
        return f"error: {said}"

    async def _result(self, call: ToolCall) -> Any:
        tool = self._tools.get(call.name)
        if tool is None:
            raise BadCall(f"there is no tool {call.name!r}{nearest(call.name, self._tools)}: {', '.join(self._tools)}")
        if not isinstance(call.arguments, Mapping):
            raise BadCall(f"arguments {shown(call.arguments)} are no JSON object")
        async with asyncio.timeout(self._agentic.tool_timeout_s):
            return await tool.call(call.arguments)


def tool_environment(agentic: AgenticSection) -> ToolEnvironment:
    """Raises `EnvironmentLoadError` where there is nothing to call."""
    if not agentic.tools and not agentic.mcp_servers:
        raise EnvironmentLoadError(
            f"psrl.agentic_rl.environment={NAME} has no tools; allowed: psrl.agentic_rl.tools, the import paths of "
            "functions, and psrl.agentic_rl.mcp_servers"
        )
    if agentic.tool_parser is None:
        raise EnvironmentLoadError(
            f"psrl.agentic_rl.environment={NAME} with psrl.agentic_rl.tool_parser=null: no call would be found; "
            "allowed: vLLM's name of the parser for this model, such as hermes"
        )
    return ToolEnvironment(agentic)
