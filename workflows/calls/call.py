"""One activity as workflows call it: its signature, its queue, and how long a caller waits for it.

Used through `calls.table`, which has one entry per activity. What only the caller knows (a queue, a limit from the
configuration) it adds with `dataclasses.replace` or `on`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Generic, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from . import settings
    from .lifetime import Lifetime, ran_out

Request = TypeVar("Request")
Result = TypeVar("Result")
AT_ONCE: Final = workflow.ActivityCancellationType.TRY_CANCEL
AFTER_ITS_END: Final = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


@dataclass(frozen=True)
class Call(Generic[Request, Result]):
    activity: Callable[[Request], Awaitable[Result]]
    """Its signature; the type of the activity is its name."""
    patience: timedelta | None
    """Schedule-to-close, all attempts together. `None`: as many attempts of `start_to_close` as `retry` allows."""
    start_to_close: timedelta | None = None
    """Of one attempt."""
    pickup: timedelta | None = None
    """Schedule-to-start: a queue that nobody serves for so long is given up on."""
    heartbeat: timedelta | None = None
    retry: RetryPolicy = field(default_factory=lambda: settings.QUICK)
    queue: str | None = None
    """`None`: the workflow's own."""
    living: bool = True
    """Patience counts only time in which somebody ran the workflow (`calls.lifetime`): the call is idempotent, and one
    that ran out of patience in an absence is made again."""
    seen_to_its_end: bool = False
    """One that is cancelled is over when its caller continues, which then finds all that it has begun. The others may
    work for some seconds more."""

    @property
    def name(self) -> str:
        return getattr(self.activity, "__name__", "activity")

    def on(self, queue: str) -> "Call[Request, Result]":
        """The same call to the worker of this queue."""
        return replace(self, queue=queue)

    async def __call__(self, request: Request, *, summary: str, activity_id: str | None = None) -> Result:
        if self.patience is None or not self.living:
            return await self._once(request, self.patience, summary, activity_id)
        lifetime = Lifetime(self.patience)
        try:
            return await self.within(lifetime, request, summary=summary, activity_id=activity_id)
        finally:
            lifetime.close()

    async def within(
        self, lifetime: Lifetime, request: Request, *, summary: str, activity_id: str | None = None
    ) -> Result:
        """With the patience that a lifetime has left, shared with whatever else it limits."""
        while True:
            try:
                return await self._once(request, lifetime.timeout, summary, activity_id)
            except ActivityError as error:
                if not self.living or not ran_out(error) or lifetime.over:
                    raise

    async def _once(
        self, request: Request, patience: timedelta | None, summary: str, activity_id: str | None
    ) -> Result:
        return await workflow.execute_activity(
            self.activity,
            request,
            task_queue=self.queue,
            activity_id=activity_id,
            summary=summary,
            schedule_to_close_timeout=patience,
            schedule_to_start_timeout=self.pickup,
            start_to_close_timeout=self.start_to_close,
            heartbeat_timeout=self.heartbeat,
            retry_policy=self.retry,
            cancellation_type=AFTER_ITS_END if self.seen_to_its_end else AT_ONCE,
        )


@dataclass(frozen=True)
class LocalCall(Generic[Request, Result]):
    """Runs in the worker of the workflow itself; its last error arrives bare, not as an `ActivityError`. Forbidden in
    workflows that take signals and continue as new (docs/decisions/continue-as-new.md)."""

    activity: Callable[[Request], Awaitable[Result]]
    patience: timedelta
    start_to_close: timedelta | None = None
    retry: RetryPolicy = field(default_factory=lambda: settings.LOCAL)

    @property
    def ordinary(self) -> Call[Request, Result]:
        """For workflows in which the local one is forbidden."""
        return Call(self.activity, self.patience, self.start_to_close or self.patience)

    async def __call__(self, request: Request) -> Result:
        return await workflow.execute_local_activity(
            self.activity,
            request,
            schedule_to_close_timeout=self.patience,
            start_to_close_timeout=self.start_to_close,
            retry_policy=self.retry,
        )
