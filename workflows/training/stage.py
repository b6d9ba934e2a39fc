"""One call of the trainer, held while its disk is full or while it serves another run.

Called by `TrainStep` and `TrainingRun`. A stage that finds no room to write is no failure: it is tried again until
there is room, and whoever called is told what is missing, since people must provide it. Nor is it one that a run finds
its trainer taken: after a crash of everything, a run that was started meanwhile may have asked first.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from ...schemas.errors import InstanceBusy, StorageFull
    from ...schemas.messages.base import Message
    from ..calls import settings
    from ..calls.call import Call

Request = TypeVar("Request", bound=Message)
Result = TypeVar("Result")
Hold = Callable[[str], Awaitable[None]]
"""Told once with what is missing, and once with an empty text when the stage continues."""


async def trainer_stage(
    stage: Call[Request, Result],
    request: Request,
    *,
    summary: str,
    hold: Hold,
    activity_id: str | None = None,
    takes_turns: bool = True,
) -> Result:
    """Fails when it is held for `settings.HELD_PATIENCE`, and at once for a taken trainer unless it `takes_turns`."""
    held_since: float | None = None
    while True:
        try:
            result = await stage(request, summary=summary, activity_id=activity_id)
        except ActivityError as error:
            missing = _missing(error, takes_turns)
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


def _missing(error: ActivityError, takes_turns: bool) -> str | None:
    """What the stage waits for; `None`: it has failed."""
    cause = error.cause
    held_by = {StorageFull.__name__} | ({InstanceBusy.__name__} if takes_turns else set())
    return str(cause.message) if isinstance(cause, ApplicationError) and cause.type in held_by else None
