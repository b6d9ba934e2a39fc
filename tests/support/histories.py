"""Workflow histories: replaying them against the code of today, and files of recorded ones."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.worker._workflow import _WorkflowWorker

from psrl.workers.orchestrator import WORKFLOWS

FOLDER = Path(__file__).parents[1] / "histories"
LOCAL_ACTIVITY = "core_local_activity"
PROCESS_NAME = r'"\d+@[^"]+"'


async def replay(history: WorkflowHistory) -> None:
    """Raises when the code decides otherwise than the history says. A run takes its name from its workflow id, which a
    history carries beside its events."""
    with _differences_are_told():
        await _replayer().replay_workflow(history)


async def replay_run(client: Client, run_id: str) -> int:
    """Every history that the run and its workflows have left so far, also of those that go on; how many."""
    query = f"RlRun = '{run_id}' OR WorkflowId = '{run_id}'"
    executions = [execution async for execution in client.list_workflows(query)]

    async def histories() -> AsyncIterator[WorkflowHistory]:
        for execution in executions:
            yield await client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()

    with _differences_are_told():
        await _replayer().replay_workflows(histories(), raise_on_replay_failure=True)
    return len(executions)


@contextmanager
def _differences_are_told() -> Iterator[None]:
    """Of a workflow that fails by a difference from its history (`psrl.workflows.failure`) the SDK's replayer tells
    nothing: it waits for ever. Meanwhile differences are what the SDK makes of them by default."""
    with patch.object(_WorkflowWorker, "nondeterminism_as_workflow_fail_for_types", return_value=set()):
        yield


def _replayer() -> Replayer:
    return Replayer(
        workflows=list(WORKFLOWS),
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=pydantic_data_converter,
    )


def local_activities(history: WorkflowHistory) -> int:
    """How many results of local activities the history holds."""
    marker = EventType.EVENT_TYPE_MARKER_RECORDED
    return sum(
        event.event_type == marker and event.marker_recorded_event_attributes.marker_name == LOCAL_ACTIVITY
        for event in history.events
    )


def write(history: WorkflowHistory, file: Path) -> None:
    """Without the names of the machines and processes that took part."""
    content = {"workflow_id": history.workflow_id, "history": json.loads(history.to_json())}
    told = json.dumps(content, indent=1, sort_keys=True) + "\n"
    file.write_text(re.sub(PROCESS_NAME, '"worker"', told), encoding="utf-8")


def read(file: Path) -> WorkflowHistory:
    content = json.loads(file.read_text(encoding="utf-8"))
    return WorkflowHistory.from_json(content["workflow_id"], content["history"])
