"""All runs of a stack, for `psrl status`: what the store recorded last, corrected by what Temporal knows now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from temporalio.client import WorkflowExecutionStatus

from ...activities.store.reach import opened
from ...schemas.messages.run import RunPhase
from ...schemas.stack import Stack
from ...schemas.tables import Run
from .runs import ENDED, RUN_TYPE, temporal_of

PATIENCE_S = 2.0
"""For Temporal: the list is of use without it."""


@dataclass(frozen=True)
class StoredRun:
    run_id: str
    phase: str
    steps: int


def stored_runs(stack: Stack) -> list[StoredRun]:
    """The oldest first. Raises `Unreachable`."""
    query = select(Run.run_id, Run.phase, Run.total_steps).order_by(Run.created_at)
    with opened(stack.postgres_url, stack.store_id) as store, store.connect() as connection:
        return [StoredRun(*row) for row in connection.execute(query)]


async def executions(stack: Stack, stored: Collection[StoredRun]) -> dict[str, WorkflowExecutionStatus]:
    """The newest execution's status of every run that is alive, and of those the store holds to be: one query, however
    many runs there are. Executions that continued as new, one for each step, are left out. Raises `Unreachable`."""
    query = f"WorkflowType = '{RUN_TYPE}' AND (ExecutionStatus = 'Running'"
    if unsure := ", ".join(f"'{run.run_id}'" for run in stored if run.phase not in ENDED):
        query += f" OR (WorkflowId IN ({unsure}) AND ExecutionStatus != 'ContinuedAsNew')"
    newest: dict[str, WorkflowExecutionStatus] = {}
    async with temporal_of(stack, PATIENCE_S) as client:
        async for found in client.list_workflows(query + ")"):  # the newest first
            if found.status is not None:
                newest.setdefault(found.id, found.status)
    return newest


def as_they_are(stored: Sequence[StoredRun], known: Mapping[str, WorkflowExecutionStatus]) -> dict[str, str]:
    """A line for each run."""
    lines = {run.run_id: f"{_truth(run, known.get(run.run_id))}, {run.steps} steps" for run in stored}
    running = WorkflowExecutionStatus.RUNNING
    admitting = {run_id: str(RunPhase.ADMITTING) for run_id, status in known.items() if status is running}
    return lines | {run_id: phase for run_id, phase in admitting.items() if run_id not in lines}


def _truth(run: StoredRun, status: WorkflowExecutionStatus | None) -> str:
    alive = status is WorkflowExecutionStatus.RUNNING
    if run.phase in ENDED:
        return f"running again (previously {run.phase})" if alive else run.phase
    if alive:
        return run.phase
    ended = "no longer in Temporal" if status is None else f"{status.name.lower().replace('_', ' ')} in Temporal"
    return f"{ended} (last seen {run.phase}; `psrl resume {run.run_id}` resumes it)"
