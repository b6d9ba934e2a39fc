"""Histories of recorded runs replay against the code of today: a run in progress survives an update of the code."""

from pathlib import Path

import pytest
from temporalio.workflow import NondeterminismError

from psrl.workers.orchestrator import WORKFLOWS
from tests.support.histories import FOLDER, read, replay

RECORDED = sorted(FOLDER.glob("*.json"))


def test_every_workflow_has_a_recorded_history() -> None:
    assert {file.stem for file in RECORDED} == {workflow.__name__ for workflow in WORKFLOWS}


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
async def test_a_recorded_history_replays(file: Path) -> None:
    await replay(read(file))


async def test_a_changed_decision_is_noticed() -> None:
    history = read(FOLDER / "TrainStep.json")
    scheduled = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    scheduled[1].activity_task_scheduled_event_attributes.activity_type.name = "another"
    with pytest.raises(NondeterminismError, match="another"):
        await replay(history)
