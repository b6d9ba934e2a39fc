"""The user's agent, a function or a program, made ready to be called once. Made in the process that it runs in.

Promise: whatever it returns becomes a reward and information that can be stored, or is refused by name; how it failed
is told in what it printed.
"""

import inspect
import json
import os
import subprocess
import traceback
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...schemas.config.agentic import AgenticSection
from ...schemas.environment import MODEL_VARIABLE, TASK_VARIABLE
from ...schemas.errors import ConfigError, UserCodeFailed
from ...schemas.messages.agents import AgentTask
from ...schemas.text import shown
from ..data.storable import kept
from ..rewards.reading import number
from ..user_code.load import UserFunction, is_async, load_function, signature_of, takes_one
from ..user_code.prepared import Recipe

FUNCTION, COMMAND = "psrl.agentic_rl.agent", "psrl.agentic_rl.agent_command"
SAYS = ("reward", "info", "drop")
TASK_FILE = "task.json"


class Assignment(NamedTuple):
    task: AgentTask
    folder: str
    """Fresh, and removed afterwards."""


class AgentSaid(NamedTuple):
    """What an agent returned."""

    reward: float | None = None
    info: dict[str, Any] = {}
    drop: str = ""
    """Why the episode is not to be trained on; empty: it is."""


class FunctionAgent:
    """Called with the task."""

    about = None
    at_once: int | None = None

    def __init__(self, path: str) -> None:
        """Raises `ConfigError`."""
        self.function = load_function(FUNCTION, path, ConfigError)
        self.is_async = is_async(self.function)
        signature = signature_of(self.function)
        if signature is not None and not takes_one(signature, {}):
            raise ConfigError(f"{FUNCTION}={path!r} takes {signature}; allowed: a function of one argument, the task")

    def ask(self, argument: Assignment) -> Any:
        with _told():
            returned = self.function(argument.task)
        return _awaited(returned) if inspect.isawaitable(returned) else returned

    def read(self, argument: Assignment, returned: Any) -> AgentSaid:
        return said(returned)


class CommandAgent:
    """A program, in a directory of its own."""

    about = None
    at_once: int | None = None
    is_async = False

    def __init__(self, command: tuple[str, ...]) -> None:
        self.function: UserFunction = subprocess.run
        self._command = command

    def ask(self, argument: Assignment) -> int:
        task, folder = argument
        file = Path(folder) / TASK_FILE
        file.write_text(task.model_dump_json(indent=2))
        named = {
            "OPENAI_BASE_URL": task.base_url,
            "OPENAI_API_KEY": task.api_key,
            MODEL_VARIABLE: task.model,
            TASK_VARIABLE: str(file),
        }
        # It keeps our process group, and ends with it.
        return subprocess.run(self._command, cwd=folder, env={**os.environ, **named}, check=False).returncode

    def read(self, argument: Assignment, returned: int) -> AgentSaid:
        if returned:
            raise UserCodeFailed(f"exit status {returned}")
        return AgentSaid()


def recipe(agentic: AgenticSection) -> Recipe:
    if agentic.agent:
        return Recipe(FunctionAgent, (agentic.agent,))
    return Recipe(CommandAgent, (agentic.agent_command,))


def said(returned: Any) -> AgentSaid:
    """Raises `UserCodeFailed` for what an agent may not return."""
    if returned is None:
        return AgentSaid()
    if not isinstance(returned, Mapping):
        return AgentSaid(number(returned))
    if unknown := [key for key in returned if key not in SAYS]:
        raise UserCodeFailed(f"returned a dict with {shown(unknown[0])}; allowed: nothing, a number, or {SAYS} in one")
    reward, info = returned.get("reward"), returned.get("info") or {}
    if not isinstance(info, Mapping):
        raise UserCodeFailed(f"returned info={shown(info)}; allowed: a dict")
    drop = returned.get("drop") or ""
    if not isinstance(drop, str):
        raise UserCodeFailed(f"returned drop={shown(drop)}; allowed: text, the reason")
    stored: dict[str, Any] = kept(info, "info", _refuse)
    return AgentSaid(None if reward is None else number(reward), json.loads(json.dumps(stored)), drop)


def _refuse(name: str, value: Any, why: str) -> None:
    raise UserCodeFailed(f"returned {name}={shown(value)}, which {why}; allowed: what JSON has a form for")


@contextmanager
def _told() -> Iterator[None]:
    """Where it failed, among what it printed."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
        raise


async def _awaited(returned: Awaitable[Any]) -> Any:
    with _told():
        return await returned
