"""Calls of the trainer outside a step: it is opened, saves a last checkpoint, is released. Used by `TrainingRun`."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import RunConfig
    from ...schemas.ids import RunId
    from ...schemas.messages.training import CheckpointRequest, OpenTrainerRequest
    from ..calls import table as calls
    from ..calls.lifetime import while_alive
    from ..training.stage import Hold, trainer_stage
    from .faults import never_came_up


async def open_trainer(run: RunId, config: RunConfig, hold: Hold, held: Callable[[], bool]) -> None:
    """`held`: whether it waits for room on its disk; from then on the stage has its own patience."""
    limit = timedelta(seconds=config.psrl.deployment.start_timeout_s)
    opening = asyncio.create_task(
        trainer_stage(
            calls.open_trainer,
            OpenTrainerRequest(run_id=run),
            summary="load the model, publish v0",
            hold=hold,
            takes_turns=False,  # of a run that has not begun, the user hears at once
        )
    )
    try:
        await while_alive(lambda: opening.done() or held(), limit)
        await opening
    except TimeoutError as error:
        raise never_came_up("the trainer", limit, "its log is trainer.log under the stack's home") from error
    finally:
        opening.cancel()


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
