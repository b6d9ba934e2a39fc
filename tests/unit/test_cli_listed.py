"""The list of runs: what the store heard last against what Temporal knows."""

import pytest
from temporalio.client import WorkflowExecutionStatus

from psrl.workers.cli.listed import StoredRun, as_they_are


@pytest.mark.parametrize(
    ("phase", "status", "line"),
    [
        ("running", WorkflowExecutionStatus.RUNNING, "running, 4 steps"),
        ("stopped", None, "stopped, 4 steps"),
        ("stopped", WorkflowExecutionStatus.RUNNING, "going on again (stopped before), 4 steps"),
        (
            "running",
            WorkflowExecutionStatus.TIMED_OUT,
            "timed out in Temporal (last heard of as running; `psrl resume r` goes on), 4 steps",
        ),
        ("paused", None, "not in Temporal any more (last heard of as paused; `psrl resume r` goes on), 4 steps"),
    ],
)
def test_a_run_is_listed_as_it_is(phase: str, status: WorkflowExecutionStatus | None, line: str) -> None:
    known = {} if status is None else {"r": status}
    assert as_they_are([StoredRun("r", phase, 4)], known) == {"r": line}


def test_a_run_that_is_not_in_the_store_yet_is_listed_too() -> None:
    known = {"new": WorkflowExecutionStatus.RUNNING, "refused": WorkflowExecutionStatus.FAILED}
    assert as_they_are([], known) == {"new": "admitting"}
