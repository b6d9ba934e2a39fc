"""Which groups count against a run: those in a row that failed, and apart from them those that were filtered."""

import pytest

from psrl.schemas.config import parse_config
from psrl.schemas.ids import GroupId, Version, training_group
from psrl.schemas.messages.data import Admission
from psrl.schemas.messages.run import GroupOutcome, GroupReport, RunPhase
from psrl.workflows.run.control import Control
from psrl.workflows.run.faults import hopeless
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.opening import empty_ledger
from psrl.workflows.run.state import RunState
from tests.support.scripted_parts import minimal_config

COMPLETE, FILTERED, FAILED = GroupOutcome.COMPLETE, GroupOutcome.FILTERED, GroupOutcome.FAILED


def run_after(*outcomes: GroupOutcome) -> RunState:
    """A run that bears two failures or three drops in a row."""
    filtering = {"enable": True, "name": "dynamic_sampling_filter", "max_consecutive_drops": 3}
    limits = {"agentic_rl": {"refill_failure_threshold": 2}, "group_post_process": filtering}
    config = parse_config(minimal_config(staleness_buffer_entries=100, **limits))
    admission = Admission(
        config=config.model_dump(mode="json"),
        total_steps=9,
        prompts=9,
        skipped_too_long=0,
        validation_prompts=0,
        data_fingerprint="f",
    )
    groups = Groups(ledger=empty_ledger(config))
    for number, outcome in enumerate(outcomes):
        group = training_group(number)
        groups.start(Version(0), (group,), 1.0)
        groups.report(GroupReport(group_id=GroupId(group), outcome=outcome, reason=f"reason {number}"), back_at=0.0)
    return RunState(admission=admission, control=Control(phase=RunPhase.RUNNING), groups=groups)


@pytest.mark.parametrize(
    "outcomes",
    [(FAILED,), (FAILED, COMPLETE, FAILED), (FILTERED, FILTERED, FAILED), (FILTERED, FILTERED, COMPLETE, FILTERED)],
    ids=["too few", "a complete one between", "of each too few", "dropped ones with a complete one between"],
)
def test_a_run_bears_failures_that_are_not_in_a_row(outcomes: tuple[GroupOutcome, ...]) -> None:
    assert hopeless(run_after(*outcomes), "") is None


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ((FAILED, FAILED), "2 groups in a row"),
        ((FAILED, FILTERED, FAILED), "2 groups in a row"),
        ((FILTERED, FILTERED, FILTERED), "3 groups in a row"),
    ],
    ids=["failed", "a dropped one between", "dropped"],
)
def test_a_run_gives_up_when_as_many_in_a_row_failed_or_were_dropped_as_it_bears(
    outcomes: tuple[GroupOutcome, ...], told: str
) -> None:
    fault = hopeless(run_after(*outcomes), "")
    assert fault is not None
    assert fault.message.startswith(told)
    assert f"reason {len(outcomes) - 1}" in fault.message
