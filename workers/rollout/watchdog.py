"""Tells an engine that is stuck from one that is busy or idle. Asked by the host, about twice a second.

Two signs of life count: tokens of any request, and the answer to a ping, which an engine gives between two of its
steps. Promises: an engine without either for the limit is called stuck; so is one that answers pings for `PINGS_ONLY`
limits while requests wait for a token and none comes; a long prefill is neither, because it is made of steps; time in
which this process itself did not run does not count.
"""

import asyncio
import time
from collections.abc import Callable

from ...schemas.errors import PsrlError
from .engine import Engine
from .gate import Gate

PINGS_ONLY = 10
PING_SHARE = 0.25
"""Of the limit: the silence after which the engine is asked, and the most that one look may add to it."""


class Watchdog:
    def __init__(self, gate: Gate, clock: Callable[[], float] = time.monotonic) -> None:
        self._gate = gate
        self._clock = clock
        self._ping: asyncio.Task[bool] | None = None
        self.reset()

    def reset(self) -> None:
        """The engine is new, or nothing is expected of it now."""
        self._silent_s = self._without_token_s = 0.0
        self._seen = self._gate.chunks
        self._looked_at = self._clock()
        if self._ping is not None:
            self._ping.cancel()
            self._ping = None

    def look(self, engine: Engine, limit_s: float) -> str:
        """Why the engine is taken for stuck; empty when it is not."""
        self._pass_time(limit_s)
        self._heed_ping()
        if self._gate.chunks != self._seen:
            self._seen = self._gate.chunks
            self._silent_s = self._without_token_s = 0.0
        elif not self._gate.waiting:
            self._without_token_s = 0.0
        if self._silent_s >= limit_s:
            return f"no sign of life for {self._silent_s:.0f} s"
        if self._without_token_s >= PINGS_ONLY * limit_s:
            return f"it answers, but {self._gate.waiting} requests got no token for {self._without_token_s:.0f} s"
        if self._ping is None and self._silent_s >= PING_SHARE * limit_s:
            self._ping = asyncio.create_task(_answers(engine))
        return ""

    def _pass_time(self, limit_s: float) -> None:
        now = self._clock()
        passed = min(now - self._looked_at, PING_SHARE * limit_s)
        self._looked_at = now
        self._silent_s += passed
        self._without_token_s += passed

    def _heed_ping(self) -> None:
        if self._ping is not None and self._ping.done():
            if self._ping.result():
                self._silent_s = 0.0
            self._ping = None


async def _answers(engine: Engine) -> bool:
    try:
        await engine.ping()
    except PsrlError:
        return False  # It is dead, which the host notices by other means.
    return True
