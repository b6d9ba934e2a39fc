"""Calls of one function of the user's: bounded in number and time, each in a thread or in a process of its own.

Promises: a call that hangs costs nobody but itself. In a thread it cannot be stopped from outside, so it is abandoned
and counted; past a limit further calls are refused rather than piling up threads. A function that is found to need a
process gets one, from its first call on or from the one that shows it.
"""

import asyncio
import logging
from typing import Any

from ...schemas.config import RewardIsolation, RewardSection
from ...schemas.errors import UserCodeFailed, UserError
from .pool import Pool
from .prepared import Prepared, Recipe, one_line
from .process import examine
from .signals import NeedsProcess, needs_process
from .threads import LOOP_ANSWERS_WITHIN_S, LoopThread, answer_in_thread

log = logging.getLogger(__name__)


class UserCalls:
    """A group filter has the limits of a reward: it runs where rewards run, on behalf of the same activity."""

    def __init__(self, what: str, recipe: Recipe, limits: RewardSection, key: str = "reward") -> None:
        """`key`: where the limits stand in the configuration."""
        self._what, self._recipe = what, recipe
        self._isolation = limits.isolation
        self._room = asyncio.Semaphore(limits.max_concurrency)
        self._max_abandoned = limits.max_concurrency
        self._timeout_s = limits.timeout_s
        self._limit = f"{key}.timeout_s={limits.timeout_s:g}"
        self._late = f"no result within {self._limit}"
        self._abandoned = 0
        self._pool = Pool(what, recipe, limits, self._late)
        self._preparing = asyncio.Lock()
        self._loaded = False
        self._about: Any = None
        self._prepared: Prepared | None = None
        self._is_async = False
        self._loop: LoopThread | None = None

    @property
    def abandoned(self) -> int:
        """Calls past their limit that still run."""
        return self._abandoned

    @property
    def apart(self) -> bool:
        """Every call has a process."""
        return self._isolation is RewardIsolation.PROCESS

    async def call(self, argument: object, *, apart: bool = False) -> Any:
        """What the function returns, as the recipe reads it. `apart`: in a process whatever was chosen. Raises
        `UserCodeFailed`, and the `UserError` that refuses the function."""
        await self.about()
        if apart or self.apart or self._prepared is None:
            return await self._call_apart(argument)
        try:
            return await self._call_here(self._prepared, argument)
        except NeedsProcess as need:
            if self._isolation is RewardIsolation.THREAD:
                raise UserCodeFailed(f"{need}; allowed: reward.isolation=auto or process") from None
            self._isolate(str(need))
            return await self._call_apart(argument)

    def close(self) -> None:
        """Ends the processes that wait for a call, and the thread that async calls have."""
        self._pool.close()
        if self._loop is not None:
            self._loop.close()

    async def about(self) -> Any:
        """What the recipe says of the function. Raises as `call`."""
        async with self._preparing:
            if not self._loaded:
                self._about = await self._load()
                self._loaded = True
            return self._about

    async def _load(self) -> Any:
        """Into this process, unless it belongs in another."""
        if not self.apart:
            try:
                prepared = await asyncio.to_thread(self._recipe.prepare)
            except UserError as refusal:
                if self._isolation is RewardIsolation.THREAD:
                    raise
                # Another process could import it when the run was admitted: perhaps that, too, is for a main thread.
                self._isolate(one_line(refusal))
            else:
                if self._isolation is RewardIsolation.AUTO and (need := needs_process(prepared.function)):
                    self._isolate(need)
                self._prepared, self._is_async = prepared, prepared.is_async
                self._limit_calls(prepared.at_once)
                return prepared.about
        found = await asyncio.to_thread(examine, self._recipe)
        self._limit_calls(found.at_once)
        return found.about

    def _limit_calls(self, at_once: int | None) -> None:
        """To as many at the same time as the function can stand, wherever they run."""
        if at_once is not None:
            self._room = asyncio.Semaphore(min(at_once, self._max_abandoned))
            self._pool.limit(at_once)

    def _isolate(self, why: str) -> None:
        if not self.apart:
            self._isolation = RewardIsolation.PROCESS
            log.warning("the %s runs in processes of its own from here on: %s", self._what, why)

    async def _call_apart(self, argument: object) -> Any:
        try:
            return await self._pool.call(argument)
        finally:
            if self._pool.deaths:
                self._isolate("it ended the process that ran it")

    async def _call_here(self, prepared: Prepared, argument: object) -> Any:
        async with self._room:
            if self._abandoned >= self._max_abandoned:
                raise UserCodeFailed(
                    f"{self._abandoned} earlier calls still run past {self._limit}; no more are started until one of "
                    "them ends"
                )
            if self._is_async:
                return await self._call_async(prepared, argument)
            return await self._call_sync(prepared, argument)

    async def _call_sync(self, prepared: Prepared, argument: object) -> Any:
        result = answer_in_thread(self._what, prepared, argument)
        try:
            if await self._finished(result):
                return result.result()
        finally:
            self._abandon(result)
        raise UserCodeFailed(self._late)

    async def _call_async(self, prepared: Prepared, argument: object) -> Any:
        loop = self._loop = self._loop or LoopThread(self._what)
        result = loop.submit(prepared, argument)
        try:
            if await self._finished(result):
                return result.result()
        finally:
            result.cancel()
        ping = loop.ping()
        if (await asyncio.wait([ping], timeout=LOOP_ANSWERS_WITHIN_S))[0]:
            raise UserCodeFailed(self._late)
        self._give_up_loop(ping)
        # The blocking call may have been another one: this one gets its time again, in a thread of its own.
        return await self._call_sync(prepared, argument)

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
