"""A step whose trainer finds no room on its disk, or is taken by another run: held, told, and continued."""

import asyncio

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, RunId
from psrl.schemas.messages.run import RunPhase, RunResult, StartRun, StartStep
from psrl.schemas.messages.training import (
    CheckpointRequest,
    StepRequest,
)
from psrl.workflows.calls import settings
from psrl.workflows.run.training_run import TrainingRun
from psrl.workflows.training.step import TrainStep
from tests.support.scripted_parts import ScriptedParts, minimal_config
from tests.support.step_parents import DeafParent, StepParent

FULL = "/disk: No space left on device: 100 bytes are needed, 7 are free"
TAKEN = "the trainer serves run 'other'"


def full() -> ApplicationError:
    return ApplicationError(FULL, type="StorageFull")


class FullDisk(ScriptedParts):
    """`times` calls of the stage `at` find no room."""

    def __init__(self, at: str, times: int = 2) -> None:
        super().__init__(total_steps=2)
        self.at, self.left = at, times
        self.tags = {GroupId("000000"): 0, GroupId("000001"): 0}
        self.failures = 0

    def write(self, stage: str) -> None:
        if stage == self.at and self.left:
            self.left -= 1
            self.failures += 1
            raise full()

    async def on_update(self, request: StepRequest) -> None:
        self.write("update")

    async def on_publish(self, version: int) -> None:
        self.write(f"publish v{version}")

    async def on_checkpoint(self, request: CheckpointRequest) -> None:
        self.write("checkpoint complete" if request.wait else "checkpoint")

    async def on_log_probs(self, request: StepRequest) -> None:
        self.write("both")

    async def on_advantages(self, request: StepRequest) -> None:
        self.write("both")


class Taken(FullDisk):
    """The trainer serves another run meanwhile."""

    def write(self, stage: str) -> None:
        if stage == self.at and self.left:
            self.left -= 1
            self.failures += 1
            raise ApplicationError(TAKEN, type="InstanceBusy", non_retryable=True)


def first_step(run_id: str) -> StartStep:
    groups = (GroupId("000000"), GroupId("000001"))
    return StartStep(run_id=RunId(run_id), buffer=0, taken=groups, dropped=(), checkpoint=True, waited_s=0)


@pytest.mark.parametrize("at", ["update", "publish v1", "checkpoint", "both"])
async def test_a_step_is_held_while_the_disk_is_full_and_its_run_is_told_once_each_way(
    skipping: Client, run_id: str, at: str
) -> None:
    parts = FullDisk(at)
    async with parts.workers(skipping, extra_workflows=[StepParent]):
        told = await skipping.execute_workflow(
            StepParent.run, first_step(run_id), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
    assert parts.failures == 2
    assert [(held.buffer, held.reason) for held in told] == [(0, FULL), (0, "")]


async def test_a_run_that_does_not_know_the_signal_is_not_hurt(skipping: Client, run_id: str) -> None:
    parts = FullDisk("update", times=1)
    async with parts.workers(skipping, extra_workflows=[DeafParent]):
        report = await skipping.execute_workflow(
            DeafParent.run, first_step(run_id), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
    assert report.publish.version == 1


async def test_a_step_of_nobody_is_held_too(skipping: Client, run_id: str) -> None:
    parts = FullDisk("publish v1", times=1)
    async with parts.workers(skipping):
        report = await skipping.execute_workflow(
            TrainStep.run, first_step(run_id), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
    assert (report.publish.version, parts.failures) == (1, 1)


async def test_a_disk_that_stays_full_fails_the_step_with_the_reason(
    skipping: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = FullDisk("update", times=10**6)
    monkeypatch.setattr(settings, "HELD_PATIENCE", settings.HELD_PAUSE * 2.5)
    async with parts.workers(skipping):
        with pytest.raises(WorkflowFailureError) as failure:
            await skipping.execute_workflow(TrainStep.run, first_step(run_id), id=run_id, task_queue=ORCHESTRATOR_QUEUE)
    cause = failure.value.cause.cause  # type: ignore[union-attr]
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == ("StorageFull", FULL)
    assert parts.failures == 4  # After 0, 10, 20 and 30 seconds.


async def begin(client: Client, run_id: str) -> WorkflowHandle[TrainingRun, RunResult]:
    request = StartRun(config=minimal_config())
    return await client.start_workflow(TrainingRun.run, request, id=run_id, task_queue=ORCHESTRATOR_QUEUE)


async def held_and_done(client: Client, run_id: str, parts: FullDisk, told: str) -> RunResult:
    """The result of a run whose status said this meanwhile."""
    parts.tags = {}
    async with parts.workers(client):
        run = await begin(client, run_id)
        async with asyncio.timeout(30):
            while told not in (await run.query(TrainingRun.status)).waiting_for:  # noqa: ASYNC110 (told only when asked)
                await asyncio.sleep(0.05)
        return await run.result()


@pytest.mark.parametrize("at", ["publish v0", "checkpoint complete"])
async def test_a_run_says_what_is_missing_while_its_first_or_last_write_finds_no_room(
    client: Client, run_id: str, at: str
) -> None:
    result = await held_and_done(client, run_id, FullDisk(at, times=1), FULL)
    assert (result.phase, result.checkpoint) == (RunPhase.DONE, "checkpoint")


@pytest.mark.parametrize("at", ["update", "publish v2", "checkpoint complete"])
async def test_a_run_that_finds_its_trainer_taken_waits_for_its_turn(client: Client, run_id: str, at: str) -> None:
    """After a crash of everything another run may have asked the trainer first."""
    parts = Taken(at, times=1)
    result = await held_and_done(client, run_id, parts, TAKEN)
    assert (result.phase, result.version, parts.failures) == (RunPhase.DONE, 2, 1)


async def test_a_run_that_cannot_have_the_trainer_at_its_start_fails_at_once(client: Client, run_id: str) -> None:
    """It has started no instance, and waits for none to be given back."""
    parts = Taken("publish v0", times=1)
    async with parts.workers(client):
        run = await begin(client, run_id)
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(run.result(), settings.LEASE.total_seconds() / 2)
    assert TAKEN in str(failure.value.cause.cause)  # type: ignore[union-attr]
