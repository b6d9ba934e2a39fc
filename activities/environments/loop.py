"""Where environments run: an event loop beside the worker's own, so that one that blocks costs the worker nothing.

Promises: a call ends within its limit; whatever the user's code raises becomes one line; a loop that is blocked is left
behind with all that runs on it, and the next call gets another.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ...schemas.errors import UserCodeFailed
from ..user_code.threads import LOOP_ANSWERS_WITHIN_S, LoopThread

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class TookTooLong(UserCodeFailed):
    """A call of an environment ran out of time."""


class Asked:
    """One call, in the form in which threads run user code."""

    is_async = True
    about = None
    at_once: int | None = None

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def ask(self, argument: Any) -> Any:
        return self.function()

    def read(self, argument: Any, returned: Any) -> Any:
        return returned


class EnvironmentLoop:
    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    @property
    def thread(self) -> LoopThread:
        """An environment belongs to the loop that it was made on."""
        if self._thread is None:
            self._thread = LoopThread("environment")
        return self._thread

    def close(self) -> None:
        """Its thread ends when its last call has."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    async def call(self, what: str, call: Callable[[], Awaitable[Value]], timeout_s: float) -> Value:
        """Raises `UserCodeFailed`; past the limit `TookTooLong`, and the call is cancelled."""
        thread = self.thread
        result = thread.submit(Asked(call), None)
        try:
            done, _ = await asyncio.wait([result], timeout=timeout_s)
            if done:
                return result.result()  # type: ignore[no-any-return]
        finally:
            result.cancel()
        if not (await asyncio.wait([thread.ping()], timeout=LOOP_ANSWERS_WITHIN_S))[0]:
            self._leave(thread, what)
        raise TookTooLong(f"{what} took longer than psrl.agentic_rl.step_timeout_s={timeout_s:g}")

    def _leave(self, thread: LoopThread, what: str) -> None:
        if self._thread is thread:
            log.error("an environment's %s blocks the event loop of all: it must await what is slow", what)
            self.close()
