"""Tests share their two cores with engines and servers: see `tests/support/deadlocks.py`."""

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from tests.support.deadlocks import TAKEN_FOR_DEADLOCKED_S


@workflow.defn(sandboxed=False)
class Idle:
    @workflow.run
    async def run(self) -> None: ...


async def test_a_machine_that_stands_still_for_seconds_is_no_deadlock(temporal_client: Client) -> None:
    worker = Worker(temporal_client, task_queue="patience", workflows=[Idle])
    assert worker._workflow_worker is not None
    assert worker._workflow_worker._deadlock_timeout_seconds == TAKEN_FOR_DEADLOCKED_S
