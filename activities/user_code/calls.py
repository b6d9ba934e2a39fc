"""Calls of one function of the user's: bounded in number and time.

Promises: a call that hangs costs nobody but itself. It cannot be stopped from outside, so it is abandoned and counted;
past a limit further calls are refused rather than piling up threads.
"""

import asyncio
import logging
from typing import Any

from ...schemas.config import RewardSection
from ...schemas.errors import UserCodeFailed
from .load import UserFunction, is_async
from .threads import LOOP_ANSWERS_WITHIN_S, LoopThread, call_in_thread

log = logging.getLogger(__name__)


class UserCalls:
    """A group filter has the limits of a reward: it runs where rewards run, on behalf of the same activity."""

    def __init__(self, what: str, function: UserFunction, limits: RewardSection) -> None:
        self._what = what
        self._function = function
        self._is_async = is_async(function)
        self._room = asyncio.Semaphore(limits.max_concurrency)
        self._max_abandoned = limits.max_concurrency
        self._timeout_s = limits.timeout_s
        self._abandoned = 0
        self._loop: LoopThread | None = None

    @property
    def abandoned(self) -> int:
        """Calls past their limit that still run."""
        return self._abandoned

    async def call(self, argument: object) -> Any:
        """What the function returns. Raises `UserCodeFailed` past the limit, and whatever the function raises."""
        async with self._room:
            if self._abandoned >= self._max_abandoned:
                raise UserCodeFailed(
                    f"{self._abandoned} earlier calls still run past reward.timeout_s={self._timeout_s:g}; no more are "
                    "started until one of them ends"
                )
            if self._is_async:
                return await self._call_async(argument)
            return await self._call_sync(argument)

    async def _call_sync(self, argument: object) -> Any:
        result = call_in_thread(self._what, self._function, argument)
        try:
            if await self._finished(result):
                return result.result()
        finally:
            self._abandon(result)
        raise UserCodeFailed(self._late())

    async def _call_async(self, argument: object) -> Any:
        loop = self._loop = self._loop or LoopThread(self._what)
        result = loop.submit(self._function, argument)
        try:
            if await self._finished(result):
                return result.result()
        finally:
            result.cancel()
        ping = loop.ping()
        if (await asyncio.wait([ping], timeout=LOOP_ANSWERS_WITHIN_S))[0]:
            raise UserCodeFailed(self._late())
        self._give_up_loop(ping)
        # The blocking call may have been another one: this one gets its time again, in a thread of its own.
        return await self._call_sync(argument)

    async def _finished(self, result: "asyncio.Future[Any]") -> bool:
        done, _ = await asyncio.wait([result], timeout=self._timeout_s)
        return bool(done)

    def _give_up_loop(self, ping: "asyncio.Future[None]") -> None:
        """From here on every call runs in a thread of its own; several calls may find the loop blocked."""
        if self._is_async:
            log.error(
                "the async %s blocked its event loop for over %g s: calls now run one by one in threads, without "
                "sharing a loop; it must await what is slow, or be sync",
                self._what,
                self._timeout_s,
            )
            self._is_async = False
            self._abandon(ping)

    def _abandon(self, result: "asyncio.Future[Any]") -> None:
        if not result.done():
            self._abandoned += 1
            result.add_done_callback(self._returned)

    def _returned(self, result: "asyncio.Future[Any]") -> None:
        self._abandoned -= 1
        if not result.cancelled():
            # Read, or asyncio reports it as never retrieved.
            result.exception()

    def _late(self) -> str:
        return f"no result within reward.timeout_s={self._timeout_s:g}"
