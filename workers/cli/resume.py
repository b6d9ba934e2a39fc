"""`psrl resume`: a paused run goes on by a signal, an ended one as a new execution of the same run."""

from sqlalchemy import func, select
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...activities.store.reach import opened
from ...schemas.errors import ConfigError, NothingToResume, RunExists, RunUnknown, nearest
from ...schemas.ids import ORCHESTRATOR_QUEUE
from ...schemas.messages.run import RunPhase, RunResult, StartRun
from ...schemas.stack import Stack
from ...schemas.tables import Run, StepMetric
from .runs import RPC_TIMEOUT, RUN_TYPE, send, temporal_of, until_admitted


async def resume_run(stack: Stack, run_id: str, accept_changed_data: bool) -> str:
    """Returns what to tell. Raises `RunUnknown`, `NothingToResume` or `ConfigError`."""
    async with temporal_of(stack) as client:
        return await _resume(client, stack, run_id, accept_changed_data)


async def _resume(client: Client, stack: Stack, run_id: str, accept_changed_data: bool) -> str:
    if await _runs(client, run_id):
        if accept_changed_data:
            raise ConfigError(
                f"--accept-changed-data: run {run_id!r} is going on with the data it has loaded; allowed for a run "
                f"that has ended (`psrl stop {run_id}` ends it)"
            )
        await send(client, run_id, "resume")
        return f"run {run_id} goes on"
    steps = _steps_trained(stack, run_id)
    try:
        await client.start_workflow(
            RUN_TYPE,
            StartRun(resume=True, accept_changed_data=accept_changed_data),
            id=run_id,
            task_queue=ORCHESTRATOR_QUEUE,
            result_type=RunResult,
            static_summary=f"goes on after step {steps}",
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError as error:
        raise RunExists(f"run {run_id!r} was started by somebody else at this moment; see `psrl status`") from error
    await until_admitted(client, run_id)
    return f"run {run_id} goes on after step {steps}; `psrl follow {run_id}` shows it"


def in_store(stack: Stack, run_id: str) -> bool:
    """Whether the run was admitted: one that was refused has nothing to resume."""
    with opened(stack.postgres_url, stack.store_id) as engine, engine.connect() as connection:
        return connection.scalar(select(Run.run_id).where(Run.run_id == run_id)) is not None


async def _runs(client: Client, run_id: str) -> bool:
    """False also when Temporal does not know it (any more): the store decides then."""
    try:
        found = await client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return found.status is WorkflowExecutionStatus.RUNNING


def _steps_trained(stack: Stack, run_id: str) -> int:
    with opened(stack.postgres_url, stack.store_id) as engine, engine.connect() as connection:
        runs = {run: phase for run, phase in connection.execute(select(Run.run_id, Run.phase))}  # noqa: C416
        steps = connection.scalar(select(func.count()).where(StepMetric.run_id == run_id))
    if run_id not in runs:
        known = ", ".join(sorted(runs)) or "none"
        raise RunUnknown(f"no run {run_id!r} is in the store{nearest(run_id, runs)}; there are: {known}")
    if runs[run_id] == RunPhase.DONE:
        raise NothingToResume(f"run {run_id!r} is done: all its {steps} steps were trained")
    return int(steps or 0)
