"""From a run's configuration to its environments. What can be known to be wrong is refused here, at admission (L13)."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from ...schemas.config import RunConfig
from ...schemas.config.agentic import AgenticSection, AgentLoop, ThinkingTemplate
from ...schemas.config.reward import PROCESS_STARTS_WITHIN_S
from ...schemas.errors import EnvironmentLoadError
from ...schemas.text import named
from ..capture.model import ChatModel
from ..user_code.load import load_object
from ..user_code.sandbox import unconfined
from .environment import Environment
from .tools import code_runner
from .tools.environment import NAME, tool_environment

KEY = "psrl.agentic_rl.environment"

Value = TypeVar("Value")

Make = Callable[[], Environment]
Tools = Sequence[Mapping[str, Any]]
"""The schemas of what the policy may call."""

ENDS_WITHIN_S = 5.0
"""Past its time limit, for a call that heeds it."""


def load_environment(agentic: AgenticSection) -> Make:
    """What makes one for each trajectory. Raises `EnvironmentLoadError`."""
    path, kwargs = agentic.environment, agentic.environment_kwargs
    if path == NAME:
        if kwargs:
            raise EnvironmentLoadError(f"psrl.agentic_rl.environment_kwargs={kwargs}: {NAME} takes none")
        tool_environment(agentic)
        return lambda: tool_environment(agentic)
    found = load_object(KEY, path, EnvironmentLoadError)
    if not (inspect.isclass(found) and issubclass(found, Environment)):
        raise EnvironmentLoadError(
            f"{KEY}={path!r} is a {type(found).__name__}; allowed: a class derived from Environment"
        )
    if missing := sorted(found.__abstractmethods__):
        raise EnvironmentLoadError(f"{KEY}={path!r} lacks {', '.join(missing)}")
    for name in ("tools", "reset", "step", "close", "save", "restore"):
        if not inspect.iscoroutinefunction(getattr(found, name)):
            raise EnvironmentLoadError(
                f"{KEY}={path!r}: {name} is no async function; allowed: async def {name}(self, …)"
            )
    try:
        inspect.signature(found).bind(**kwargs)
    except TypeError as error:
        raise EnvironmentLoadError(
            f"psrl.agentic_rl.environment_kwargs={kwargs}: {path} takes {inspect.signature(found)}: {error}"
        ) from error
    return lambda: found(**kwargs)


def check_environment(config: RunConfig) -> Tools:
    """Loads it, and tries whether the model can be talked with. What the policy may call. Raises a `UserError`."""
    if config.psrl.agentic_rl.agent_loop is not AgentLoop.MULTI_TURN:
        return ()
    tools = tool_schemas(config)
    model = ChatModel.open(config)
    if model.template.plays_apart():
        raise EnvironmentLoadError(
            f"psrl.agentic_rl.thinking_template={ThinkingTemplate.FORK} makes a training sequence of every turn, and a "
            f"trajectory of psrl.agentic_rl.agent_loop={AgentLoop.MULTI_TURN} is one; allowed: "
            f"{ThinkingTemplate.KEEP}, {ThinkingTemplate.REFUSE}"
        )
    return tools


def environment_notes(config: RunConfig) -> tuple[str, ...]:
    """What people should know of where its tools run."""
    agentic = config.psrl.agentic_rl
    runs_code = agentic.agent_loop is AgentLoop.MULTI_TURN and code_runner.NAME in agentic.tools
    if not runs_code or not (why := unconfined()):
        return ()
    return (f"the policy's programs can reach the network and read files, since they cannot be confined here: {why}",)


def tool_schemas(config: RunConfig) -> Tools:
    """Of the tools that the policy may call. Blocks; for threads. Raises `EnvironmentLoadError`."""
    if config.psrl.agentic_rl.agent_loop is not AgentLoop.MULTI_TURN:
        return ()
    return loaded(config.psrl.agentic_rl)[1]


def loaded(agentic: AgenticSection) -> tuple[Make, Tools]:
    """What makes an environment, and the tools of one. The module, the class or one of its methods may block: each has
    its time. Raises `EnvironmentLoadError`."""
    path, limit_s = agentic.environment, agentic.step_timeout_s
    late = f"was not imported within {PROCESS_STARTS_WITHIN_S:g} s"
    make = _in_time(path, lambda: load_environment(agentic), PROCESS_STARTS_WITHIN_S, late)
    late = f"was not made, or did not say which tools it has, within psrl.agentic_rl.step_timeout_s={limit_s:g}"
    tools = _in_time(path, lambda: asyncio.run(_asked(make, limit_s)), limit_s + ENDS_WITHIN_S, late)
    return make, tools


def _in_time(path: str, work: Callable[[], Value], limit_s: float, late: str) -> Value:
    """In a thread that is left behind past the limit."""
    result: Future[Value] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001  (the border to user code, which may raise anything)
            result.set_exception(error)

    Thread(target=run, name="environment", daemon=True).start()
    try:
        return result.result(limit_s)
    except EnvironmentLoadError:
        raise
    except TimeoutError as error:
        raise EnvironmentLoadError(f"{KEY}={path!r}: it {late}") from error
    except BaseException as error:
        raise EnvironmentLoadError(f"{KEY}={path!r}: {named(error)}") from error


async def _asked(make: Make, timeout_s: float) -> Tools:
    environment = make()
    async with asyncio.timeout(timeout_s):
        try:
            return await environment.tools()
        finally:
            await environment.close()
