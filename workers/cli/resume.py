"""`psrl resume`: a paused run is resumed by a signal, an ended one as a new execution of the same run. One that is
still stopping is waited for: a signal would be lost with it."""

import asyncio
from collections.abc import Callable

from sqlalchemy import func, select
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError

from ...activities.store.reach import opened
from ...schemas.errors import ConfigError, NothingToResume, RunExists, RunUnknown, nearest
from ...schemas.ids import ORCHESTRATOR_QUEUE
from ...schemas.messages.run import RunPhase, RunResult, StartRun
from ...schemas.stack import Stack
from ...schemas.tables import Run, StepMetric
from .runs import ENDING, RPC_TIMEOUT, RUN_TYPE, living, send, temporal_of, this_execution, until_admitted

Say = Callable[[str], None]

LOOK_S = 1.0


async def resume_run(stack: Stack, run_id: str, accept_changed_data: bool, say: Say) -> str:
    """Returns what to tell. Raises `RunUnknown`, `NothingToResume` or `ConfigError`."""
    async with temporal_of(stack) as client:
        while status := await living(client, run_id):
            if status.phase in ENDING:
                await until_ended(client, run_id, say)
                continue
            if accept_changed_data:
                raise ConfigError(
                    f"--accept-changed-data: run {run_id!r} is running with the data it has loaded; allowed for a run "
                    f"that has ended (`psrl stop {run_id}` ends it)"
                )
            try:
                await send(client, run_id, "resume")
            except RunUnknown:
                continue  # it ended at this moment
            after = await living(client, run_id)
            if after is not None and after.phase not in ENDING:
                return f"run {run_id} resumed"
        return await _start_again(client, stack, run_id, accept_changed_data)


async def until_ended(client: Client, run_id: str, say: Say) -> None:
    """Returns when the execution of a run that is ending has closed; tells what it still does."""
    ended = asyncio.create_task((await this_execution(client, run_id)).result())
    told = ""
    try:
        while not ended.done():
            status = await living(client, run_id)
            line = "" if status is None else f"run {run_id} is {status.phase}, waiting for it to end"
            if status is not None and status.waiting_for:
                line += f" ({status.waiting_for})"
            if line and line != told:
                say(line)
                told = line
            await asyncio.wait([ended], timeout=LOOK_S)
        await ended
    except WorkflowFailureError:
        return  # an end like any other
    finally:
        ended.cancel()


async def _start_again(client: Client, stack: Stack, run_id: str, accept_changed_data: bool) -> str:
    steps = _steps_trained(stack, run_id)
    try:
        await client.start_workflow(
            RUN_TYPE,
            StartRun(resume=True, accept_changed_data=accept_changed_data),
            id=run_id,
            task_queue=ORCHESTRATOR_QUEUE,
            result_type=RunResult,
            static_summary=f"resumed at step {steps}",
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError as error:
        raise RunExists(f"run {run_id!r} was started by someone else at the same moment; see `psrl status`") from error
    await until_admitted(client, run_id)
    return f"run {run_id} resumed at step {steps}; `psrl follow {run_id}` shows it"


def in_store(stack: Stack, run_id: str) -> bool:
    """Whether the run was admitted: one that was refused has nothing to resume."""
    with opened(stack.postgres_url, stack.store_id) as store, store.connect() as connection:
        return connection.scalar(select(Run.run_id).where(Run.run_id == run_id)) is not None


def _steps_trained(stack: Stack, run_id: str) -> int:
    with opened(stack.postgres_url, stack.store_id) as store, store.connect() as connection:
        runs = {run: phase for run, phase in connection.execute(select(Run.run_id, Run.phase))}  # noqa: C416
        steps = connection.scalar(select(func.count()).where(StepMetric.run_id == run_id))
    if run_id not in runs:
        known = ", ".join(sorted(runs)) or "none"
        raise RunUnknown(f"no run {run_id!r} is in the store{nearest(run_id, runs)}; there are: {known}")
    if runs[run_id] == RunPhase.DONE:
        raise NothingToResume(f"run {run_id!r} is done: all its {steps} steps were trained")
    return int(steps or 0)
