"""Calls of the trainer outside a step: it is opened, saves a last checkpoint, is released. Used by `TrainingRun`."""

from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import RunConfig
    from ...schemas.ids import RunId
    from ...schemas.messages.training import CheckpointRequest, OpenTrainerRequest
    from ..calls import table as calls
    from ..calls.lifetime import ran_out
    from ..training.stage import Hold, trainer_stage
    from .faults import last_failure, never_came_up


async def open_trainer(run: RunId, config: RunConfig, hold: Hold) -> None:
    """Within the start limit, but for the time in which it waits for room on its disk."""
    limit = timedelta(seconds=config.psrl.deployment.start_timeout_s)
    try:
        await trainer_stage(
            replace(calls.open_trainer, patience=limit),
            OpenTrainerRequest(run_id=run),
            summary="load the model, publish v0",
            hold=hold,
            takes_turns=False,  # of a run that has not begun, the user hears at once
        )
    except ActivityError as error:
        if not ran_out(error):
            raise
        last = last_failure(error)
        told = f"the last try failed: {last}; " if last else ""
        raise never_came_up("the trainer", limit, f"{told}its log is trainer.log under the stack's home") from error


async def save_checkpoint(run: RunId, version: int, hold: Hold) -> str:
    """Where it is, complete on disk."""
    saved = await trainer_stage(
        calls.checkpoint,
        CheckpointRequest(run_id=run, buffer=version - 1, wait=True),
        summary=f"last checkpoint, v{version}",
        hold=hold,
    )
    return saved.path


async def release_trainer(run: RunId) -> None:
    await calls.close_trainer(OpenTrainerRequest(run_id=run), summary="release the trainer")
