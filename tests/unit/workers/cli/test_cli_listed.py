"""The list of runs: what the store heard last against what Temporal knows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import WorkflowExecutionStatus

from psrl.schemas.stack import Stack
from psrl.workers.cli import listed
from psrl.workers.cli.listed import StoredRun, as_they_are, executions


@pytest.mark.parametrize(
    ("phase", "status", "line"),
    [
        ("running", WorkflowExecutionStatus.RUNNING, "running, 4 steps"),
        ("stopped", None, "stopped, 4 steps"),
        ("stopped", WorkflowExecutionStatus.RUNNING, "running again (previously stopped), 4 steps"),
        (
            "running",
            WorkflowExecutionStatus.TIMED_OUT,
            "timed out in Temporal (last seen running; `psrl resume r` resumes it), 4 steps",
        ),
        ("paused", None, "no longer in Temporal (last seen paused; `psrl resume r` resumes it), 4 steps"),
    ],
)
def test_a_run_is_listed_as_it_is(phase: str, status: WorkflowExecutionStatus | None, line: str) -> None:
    known = {} if status is None else {"r": status}
    assert as_they_are([StoredRun("r", phase, 4)], known) == {"r": line}


def test_a_run_that_is_not_in_the_store_yet_is_listed_too() -> None:
    known = {"new": WorkflowExecutionStatus.RUNNING, "refused": WorkflowExecutionStatus.FAILED}
    assert as_they_are([], known) == {"new": "admitting"}


async def test_temporal_is_asked_once_for_all_runs_and_the_newest_execution_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def list_workflows(query: str) -> AsyncIterator[Any]:
        asked.append(query)
        for run_id, status in [("a", WorkflowExecutionStatus.RUNNING), ("a", WorkflowExecutionStatus.TERMINATED)]:
            yield SimpleNamespace(id=run_id, status=status)

    @asynccontextmanager
    async def temporal_of(stack: Stack, patience_s: float) -> AsyncIterator[Any]:
        yield SimpleNamespace(list_workflows=list_workflows)

    monkeypatch.setattr(listed, "temporal_of", temporal_of)
    stored = [StoredRun("a", "running", 1), StoredRun("b", "paused", 1), StoredRun("over", "done", 1)]
    assert await executions(cast(Stack, None), stored) == {"a": WorkflowExecutionStatus.RUNNING}
    (query,) = asked
    assert "WorkflowId IN ('a', 'b')" in query
    assert "'over'" not in query
