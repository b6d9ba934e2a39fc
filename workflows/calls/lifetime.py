"""How long something may take, counted in time in which somebody ran its workflow. A night in which the stack was down
costs next to nothing.

Used by `Trajectories` for a group, by `Call` for every call with a patience of its own, and by a run for what it waits
for without a call, since the server measures the timeouts of activities with its own clock: after an absence they have
all run out. Promises: an absence of any length costs at most one slice; no event in the history before the first
silence of more than a slice; whatever happens, it ends (L11).

A workflow sees only the moments in which it acts. A long silence between two of them is one long call or an absence,
and counts for one slice at most; after the first a timer breaks the silence, so from then on all that lies beyond a
slice is known to be an absence. Without any, a limit may be granted almost twice, never more, however its calls end.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from . import settings

NOTHING = timedelta()
SLICES = 10
SLICE = timedelta(seconds=5)
"""At least: timers are exact to about a second."""


class Lifetime:
    def __init__(self, limit: timedelta) -> None:
        self._left, self._seen = limit, workflow.now()
        self._slice = min(max(limit / SLICES, SLICE), settings.ABSENCE)
        self._ticker: asyncio.Task[None] | None = None

    @property
    def left(self) -> timedelta:
        """Reading it is what makes a moment known: the more often, the more exact."""
        if self._count() > self._slice and self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
        return max(self._left, NOTHING)

    @property
    def over(self) -> bool:
        return self.left <= NOTHING

    @property
    def timeout(self) -> timedelta:
        """Of a call. At least a second, so that one at the very end fails by its own timeout and is judged."""
        return max(self.left, timedelta(seconds=1))

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Raises `TimeoutError` when `condition` does not hold before the end. Its own timers break the silence."""
        while self._left > NOTHING:
            with suppress(TimeoutError):
                await workflow.wait_condition(condition, timeout=min(self._slice, self._left))
                return
            self._count()
        raise TimeoutError

    def _count(self) -> timedelta:
        """How long the silence until now was; a slice of it at most counts."""
        now = workflow.now()
        silence, self._seen = now - self._seen, now
        self._left -= min(silence, self._slice)
        return silence

    async def _tick(self) -> None:
        """From now on exact to a slice."""
        while not self.over:
            await workflow.sleep(self._slice)


def ran_out(error: ActivityError) -> bool:
    """The call's own patience ended, by the server's clock; not by what the activity did."""
    cause = error.cause
    closed = isinstance(cause, ActivityTimeout) and cause.type is TimeoutType.SCHEDULE_TO_CLOSE
    return closed or error.retry_state is RetryState.TIMEOUT


async def while_alive(condition: Callable[[], bool], limit: timedelta) -> None:
    """Raises `TimeoutError` when `condition` does not hold within `limit`. Only time in which somebody runs this
    workflow counts: of a night in which the whole stack was down, one slice."""
    await Lifetime(limit).wait(condition)
