"""Processes that run one function of the user's, as many as there are calls at a time, up to a number.

Promises: a call past its time limit is ended, not abandoned; a process that died or holds memory is replaced; no call
meets what another one did to its process.
"""

import asyncio
import logging
import threading
from typing import Any

from ...schemas.config import RewardSection
from ...schemas.config.reward import PROCESS_STARTS_WITHIN_S
from ...schemas.errors import UserCodeFailed, UserError
from .prepared import Recipe, one_line
from .process import UserProcess
from .threads import call_in_thread

log = logging.getLogger(__name__)


class Pool:
    def __init__(self, what: str, recipe: Recipe, limits: RewardSection, late: str) -> None:
        """`late`: what is said of a call past its time limit."""
        self._what, self._recipe, self._limits, self._late = what, recipe, limits, late
        self._most = limits.processes
        self._room = asyncio.Semaphore(self._most)
        self._idle: list[UserProcess] = []
        self._closed = False
        self.deaths = 0
        """Calls that ended their process."""

    def limit(self, at_once: int) -> None:
        """No more calls at the same time. Before the first of them."""
        self._room = asyncio.Semaphore(min(self._most, at_once))

    async def call(self, argument: object) -> Any:
        """Raises `UserCodeFailed`. The time limit begins when a process is ready."""
        async with self._room:
            process = self._take()
            kept = False
            try:
                if not process.ready:
                    late = f"the function was not imported within {PROCESS_STARTS_WITHIN_S} s"
                    await self._within(process, PROCESS_STARTS_WITHIN_S, late, process.start)
                limit = self._limits.timeout_s
                found = await self._within(process, limit, self._late, process.ask, argument, limit)
                kept = True
                return found
            except UserCodeFailed:
                kept = process.alive
                raise
            except UserError as refusal:  # what was admitted has changed meanwhile
                raise UserCodeFailed(one_line(UserCodeFailed(str(refusal)))) from None
            finally:
                # Also when this call was cancelled: nobody waits for what the process is doing.
                self._give_back(process, kept)

    def close(self) -> None:
        """Calls in progress end their processes themselves."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()

    def _take(self) -> UserProcess:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            self._end(process)
        return UserProcess(self._recipe, self._limits.memory_gb)

    def _give_back(self, process: UserProcess, kept: bool) -> None:
        if kept and not process.worn and not self._closed:
            self._idle.append(process)
        else:
            self._end(process)

    async def _within(self, process: UserProcess, limit_s: float, late: str, work: Any, *arguments: Any) -> Any:
        result = call_in_thread(self._what, lambda: work(*arguments))
        # Read, or asyncio reports it as never retrieved when this call is not waited for any more.
        result.add_done_callback(lambda ended: ended.exception())
        done, _ = await asyncio.wait([result], timeout=limit_s)
        if not done:
            self._end(process)
            raise UserCodeFailed(late)
        try:
            return result.result()
        except UserCodeFailed as failure:
            if not process.alive:
                self.deaths += 1
                log.error("the %s cost its process: %s", self._what, failure)
            raise

    def _end(self, process: UserProcess) -> None:
        """Beside the event loop: a large process takes a while to be gone."""
        threading.Thread(target=process.end, name=f"end of {self._what}", daemon=True).start()
