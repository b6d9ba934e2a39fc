"""How long something may take, counted in time in which somebody ran its workflow. A night in which the stack was down
costs next to nothing.

Used by `Episodes` for a group and by every call with a patience of its own, since the server measures the timeouts of
activities with its own clock: after an absence they have all run out. Promises: an absence of any length costs at most
one slice; no event in the history before the first silence of more than a slice; whatever happens, it ends (L11).

A workflow sees only the moments in which it acts. A long silence between two of them is one long call or an absence,
and counts for one slice at most; after the first a timer breaks the silence, so from then on all that lies beyond a
slice is known to be an absence. Without any, a limit may be granted almost twice, never more, however its calls end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from . import settings
    from .waits import SLICE, SLICES

Request = TypeVar("Request")
Result = TypeVar("Result")
NOTHING = timedelta()


class Lifetime:
    def __init__(self, limit: timedelta) -> None:
        self._left, self._seen = limit, workflow.now()
        self._slice = min(max(limit / SLICES, SLICE), settings.ABSENCE)
        self._ticker: asyncio.Task[None] | None = None

    @property
    def left(self) -> timedelta:
        """Reading it is what makes a moment known: the more often, the more exact."""
        now = workflow.now()
        silence, self._seen = now - self._seen, now
        self._left -= min(silence, self._slice)
        if silence > self._slice and self._ticker is None:
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

    async def execute_activity(
        self, activity: Callable[[Request], Awaitable[Result]], request: Request, **options: Any
    ) -> Result:
        """As that of `workflow`, for idempotent calls: one that ran out of its patience in an absence is made again."""
        while True:
            try:
                return await workflow.execute_activity(
                    activity, request, schedule_to_close_timeout=self.timeout, **options
                )
            except ActivityError as error:
                if not ran_out(error) or self.over:
                    raise

    async def _tick(self) -> None:
        """From now on exact to a slice."""
        while not self.over:
            await workflow.sleep(self._slice)


def ran_out(error: ActivityError) -> bool:
    """The call's own patience ended, by the server's clock; not by what the activity did."""
    cause = error.cause
    closed = isinstance(cause, ActivityTimeout) and cause.type is TimeoutType.SCHEDULE_TO_CLOSE
    return closed or error.retry_state is RetryState.TIMEOUT


async def execute_activity(
    activity: Callable[[Request], Awaitable[Result]],
    request: Request,
    *,
    schedule_to_close_timeout: timedelta,
    **options: Any,
) -> Result:
    """A call with a lifetime of its own."""
    lifetime = Lifetime(schedule_to_close_timeout)
    try:
        return await lifetime.execute_activity(activity, request, **options)
    finally:
        lifetime.close()
