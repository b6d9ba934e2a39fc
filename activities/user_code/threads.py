"""Where foreign code runs: a thread of its own, or an event loop in a thread of its own. Both are daemons, so that a
process ends although a call hangs."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ...schemas.errors import PsrlError
from . import signals
from .prepared import Prepared, answer, answer_async

log = logging.getLogger(__name__)

LOOP_ANSWERS_WITHIN_S = 1.0
"""An event loop that does not answer for so long is blocked by the function it runs."""
LAG_LOOK_S = 0.1
"""How often a loop looks when it last had a turn."""


def call_in_thread(what: str, work: Callable[[], Any]) -> "asyncio.Future[Any]":
    """The result of `work`, which raises nothing but errors of ours, as a future of the running loop. Cancelling the
    future leaves the thread alone."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            deliver = _setter(result, work(), None)
        except PsrlError as failure:
            deliver = _setter(result, None, failure)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver)

    threading.Thread(target=run, name=what, daemon=True).start()
    return result


def answer_in_thread(what: str, prepared: Prepared, argument: object) -> "asyncio.Future[Any]":
    def work() -> Any:
        with signals.refused():
            return answer(prepared, argument)

    return call_in_thread(what, work)


def _setter(future: "asyncio.Future[Any]", value: object, failure: PsrlError | None) -> Callable[[], None]:
    def deliver() -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(value)
        else:
            future.set_exception(failure)

    return deliver


class LoopThread:
    """An event loop for async functions: one for all calls, since their clients and sessions belong to one loop."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._loop.call_soon(self._look, time.monotonic())
        self._thread = threading.Thread(target=self._run, name=f"{what} loop", daemon=True)
        self._thread.start()

    def submit(self, prepared: Prepared, argument: object) -> "asyncio.Future[Any]":
        """The call's result as a future of the running loop; cancelling it cancels the call."""

        async def run() -> Any:
            with signals.refused():
                return await answer_async(prepared, argument)

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self._loop))

    def ping(self) -> "asyncio.Future[None]":
        """Done as soon as the loop has time for something else than what it runs now."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))

    def close(self) -> None:
        """Its thread ends when its last call has."""
        self._closing = True

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _look(self, last: float) -> None:
        """On the loop itself: between two looks it had no turn for so long."""
        if self._closing and not asyncio.all_tasks(self._loop):
            self._loop.stop()
            return
        now = time.monotonic()
        if now - last > LOOP_ANSWERS_WITHIN_S:
            log.error(
                "the async %s blocked its event loop for %.1f s: no other call made progress; it must await "
                "what is slow, or be sync",
                self._what,
                now - last,
            )
        self._loop.call_later(LAG_LOOK_S, self._look, now)
