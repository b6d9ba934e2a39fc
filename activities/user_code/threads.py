"""Where foreign code runs: a thread of its own, or an event loop in a thread of its own. Both are daemons, so that a
process ends although a call hangs."""

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ...schemas.text import described
from .load import UserFunction

log = logging.getLogger(__name__)

LOOP_ANSWERS_WITHIN_S = 1.0
"""An event loop that does not answer for so long is blocked by the function it runs."""
LAG_LOOK_S = 0.1
"""How often a loop looks when it last had a turn."""


def call_in_thread(what: str, function: UserFunction, argument: object) -> "asyncio.Future[Any]":
    """The call's result as a future of the running loop. Cancelling the future leaves the thread alone."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            value = function(argument)
            # An async function, or a sync wrapper around one.
            deliver = _setter(result, asyncio.run(value) if inspect.iscoroutine(value) else value, None)
        except BaseException as error:  # noqa: BLE001  (the border to user code; also SystemExit must be reported)
            deliver = _setter(result, None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver)

    threading.Thread(target=run, name=what, daemon=True).start()
    return result


def _setter(future: "asyncio.Future[Any]", value: object, error: BaseException | None) -> Callable[[], None]:
    def deliver() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            # StopIteration cannot be raised into a future, and SystemExit would end the worker.
            future.set_exception(
                error if _is_plain(error) else RuntimeError(f"{type(error).__name__}: {described(error)}")
            )

    return deliver


def _is_plain(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, StopIteration)


class LoopThread:
    """An event loop for async functions: one for all calls, since their clients and sessions belong to one loop."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._loop.call_soon(self._look, time.monotonic())
        threading.Thread(target=self._loop.run_forever, name=f"{what} loop", daemon=True).start()

    def submit(self, function: UserFunction, argument: object) -> "asyncio.Future[Any]":
        """The call's result as a future of the running loop; cancelling it cancels the call."""

        async def run() -> Any:
            return await function(argument)

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def ping(self) -> "asyncio.Future[None]":
        """Done as soon as the loop has time for something else than what it runs now."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))

    def _look(self, last: float) -> None:
        """On the loop itself: between two looks it had no turn for so long."""
        now = time.monotonic()
        if now - last > LOOP_ANSWERS_WITHIN_S:
            log.error(
                "the async %s blocked its event loop for %.1f s: no other call made progress; it must await "
                "what is slow, or be sync",
                self._what,
                now - last,
            )
        self._loop.call_later(LAG_LOOK_S, self._look, now)
