"""Environments between their steps, in the memory of this process.

Promises: an environment answers one turn at a time, and each once as long as it lives; one that is not here is made
anew, by its saved state or by repeating what was done, or refused where that must not be; each is closed once, however
its trajectory ends, at the latest when nobody has asked for it for `idle_s`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from ...schemas.errors import FatalError, UserCodeFailed
from ...schemas.ids import GroupId, RunId
from ...schemas.text import shown
from ..user_code.threads import LoopThread
from .environment import Action, Environment, Step, Task
from .load import Make
from .loop import EnvironmentLoop
from .says import require_json, require_step

log = logging.getLogger(__name__)

Key = tuple[RunId, GroupId, int]

END_S = 5.0
"""For closing what is left at the end of the process."""


class HostGone(FatalError):
    """The process that kept the environment is gone, and nothing may be repeated."""

    def __init__(self) -> None:
        super().__init__("the environment's host is gone, and its steps must not be repeated (repeatable = False)")


class NobodyNeedsIt(FatalError):
    """It was closed while it was asked."""

    def __init__(self) -> None:
        super().__init__("the environment was closed while it was asked")


class Answered(NamedTuple):
    step: Step
    state: Any
    """As `save` gave it; None where there is nothing to save, or nothing more to come."""


@dataclass(frozen=True)
class Past:
    """How an environment came to where it is, for one that has to be made anew."""

    make: Make
    task: Task
    actions: Callable[[], Awaitable[Sequence[Action]]]
    """Earlier turns; read only when they are needed."""
    state: Any
    """As saved after the last of them; None: it has none."""
    claim: Callable[[], Awaitable[bool]]
    """Before a step that must not be repeated. False: it was begun before."""
    timeout_s: float
    """Of each call."""
    idle_s: float
    """Nobody will ask again after so long."""


@dataclass
class Kept:
    environment: Environment
    thread: LoopThread
    timeout_s: float
    turns: int
    """It has answered."""
    last: Answered | None = None
    closed: bool = False
    running: "asyncio.Future[Any] | None" = None
    """A call of it."""
    idle: asyncio.TimerHandle | None = None


class Keeper:
    def __init__(self) -> None:
        self._loop = EnvironmentLoop()
        self._kept: dict[Key, Kept] = {}
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """One who asks at a time; two attempts at one step may be here."""
        self._closing: set[asyncio.Task[None]] = set()

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    async def answer(self, key: Key, action: Action, past: Past) -> Answered:
        """Raises `UserCodeFailed`, `HostGone` or `NobodyNeedsIt`; the environment is closed then."""
        lock = self._turns.setdefault(key, asyncio.Lock())
        async with lock:
            try:
                kept = self._here(key, action.turn) or await self._made(key, action.turn, past)
                if kept.last is not None and kept.turns == action.turn + 1:
                    return kept.last
                if not kept.environment.repeatable and not await past.claim():
                    raise HostGone
                answered = await self._step(kept, action)
            except (Exception, asyncio.CancelledError):
                self.close(key)
                raise
            self._wait_for_next(key, kept, past.idle_s)
            return answered

    def close(self, key: Key) -> None:
        """In the background."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        kept.closed = True
        if kept.idle is not None:
            kept.idle.cancel()
        if kept.running is not None:
            kept.running.cancel()
        task = asyncio.create_task(self._close(key, kept))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def overtaken(self, key: Key) -> None:
        """The policy was told what another process answered: what stands here is no longer what it plays with. One that
        must not be repeated has answered nowhere else."""
        kept = self._kept.get(key)
        if kept is not None and kept.environment.repeatable:
            self.close(key)

    async def end(self) -> None:
        """Of the process: whatever is left is closed, if that does not take long."""
        for key in list(self._kept):
            self.close(key)
        if self._closing:
            await asyncio.wait(list(self._closing), timeout=END_S)
        self._loop.close()

    def _here(self, key: Key, turn: int) -> Kept | None:
        """It stands before this turn, or right behind it; and the loop that it lives on is not blocked."""
        kept = self._kept.get(key)
        if kept is not None and kept.thread is self._loop.thread and kept.turns in (turn, turn + 1):
            return kept
        return None

    async def _made(self, key: Key, turn: int, past: Past) -> Kept:
        self.close(key)
        thread = self._loop.thread
        environment = await self._loop.call("class", lambda: _make(past.make), past.timeout_s)
        self._kept[key] = kept = Kept(environment, thread, past.timeout_s, turn)
        await self._bring(environment, turn, past)
        return kept

    async def _bring(self, environment: Environment, turn: int, past: Past) -> None:
        """To where it was before this turn."""
        if turn and past.state is not None and can_restore(environment):
            await self._loop.call("restore", lambda: environment.restore(past.task, past.state), past.timeout_s)
            return
        if turn and not environment.repeatable:
            raise HostGone
        await self._loop.call("reset", lambda: environment.reset(past.task), past.timeout_s)
        for action in await past.actions() if turn else ():
            await self._loop.call("step", partial(environment.step, action), past.timeout_s)

    async def _step(self, kept: Kept, action: Action) -> Answered:
        environment, timeout_s = kept.environment, kept.timeout_s
        kept.running = asyncio.ensure_future(self._loop.call("step", lambda: environment.step(action), timeout_s))
        try:
            step = require_step(await kept.running)
        except asyncio.CancelledError:
            if kept.closed:
                raise NobodyNeedsIt from None
            raise
        finally:
            kept.running = None
        state = None
        if not step.done and can_restore(environment):
            state = require_json("save", await self._loop.call("save", environment.save, timeout_s))
        kept.turns, kept.last = action.turn + 1, Answered(step, state)
        return kept.last

    def _wait_for_next(self, key: Key, kept: Kept, idle_s: float) -> None:
        if kept.idle is not None:
            kept.idle.cancel()
        kept.idle = asyncio.get_running_loop().call_later(idle_s, self.close, key)

    async def _close(self, key: Key, kept: Kept) -> None:
        if kept.thread is not self._loop.thread:
            log.warning("the environment of %s cannot be closed: the event loop that it lives on is blocked", key)
            return
        try:
            await self._loop.call("close", kept.environment.close, kept.timeout_s)
        except UserCodeFailed as failure:
            log.warning("the environment of %s was not closed properly: %s", key, failure)


def can_restore(environment: Environment) -> bool:
    return type(environment).restore is not Environment.restore


async def _make(make: Make) -> Environment:
    """Where it will live."""
    environment = make()
    if not isinstance(environment.repeatable, bool):
        raise TypeError(f"repeatable={shown(environment.repeatable)}; allowed: True, False")
    return environment
