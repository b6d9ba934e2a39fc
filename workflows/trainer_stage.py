"""One call of the trainer, held while its disk is full.

Called by `TrainStep` and `TrainingRun`. A stage that finds no room to write is no failure: it is tried again until
there is room, and whoever called is told what is missing, since people must provide it.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from ..schemas.errors import StorageFull
    from ..schemas.ids import TRAINER_QUEUE
    from ..schemas.messages.base import Message
    from . import lifetime, settings

Request = TypeVar("Request", bound=Message)
Result = TypeVar("Result")
Hold = Callable[[str], Awaitable[None]]
"""Told once with what is missing, and once with an empty text when the stage goes on."""


async def trainer_stage(
    stage: Callable[[Request], Awaitable[Result]],
    request: Request,
    *,
    summary: str,
    patience: timedelta,
    hold: Hold,
    activity_id: str | None = None,
) -> Result:
    """Its activity type is that of the signature. Fails when the disk stays full for `settings.HELD_PATIENCE`."""
    held_since: float | None = None
    while True:
        try:
            result = await lifetime.execute_activity(
                stage,
                request,
                task_queue=TRAINER_QUEUE,
                activity_id=activity_id,
                summary=summary,
                schedule_to_close_timeout=patience,
                heartbeat_timeout=settings.TRAIN_HEARTBEAT,
                retry_policy=settings.STAGE,
            )
        except ActivityError as error:
            missing = _missing_room(error)
            if missing is None:
                raise
            if held_since is None:
                held_since = workflow.time()
                await hold(missing)
            held = workflow.time() - held_since
            if held > settings.HELD_PATIENCE.total_seconds():
                raise
            await workflow.sleep(settings.HELD_PAUSE if held < 60 else settings.HELD_PAUSE_MAX)
        else:
            if held_since is not None:
                await hold("")
            return result


def _missing_room(error: ActivityError) -> str | None:
    cause = error.cause
    full = isinstance(cause, ApplicationError) and cause.type == StorageFull.__name__
    return str(cause.message) if isinstance(cause, ApplicationError) and full else None
