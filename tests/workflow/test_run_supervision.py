"""A part of a run that ends without a word: noticed by the sweep, started anew within its budget, else named (L11)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner

from psrl.schemas.ids import (
    ORCHESTRATOR_QUEUE,
    GroupId,
    InstanceId,
    RunId,
    Version,
    evaluation_workflow,
    group_workflow,
    instance_workflow,
    step_workflow,
)
from psrl.schemas.messages.data import DrawRequest, DrawResult
from psrl.schemas.messages.rewards import Score
from psrl.schemas.messages.rollout import DispatchPlan, DispatchPlanRequest
from psrl.schemas.messages.run import CollectReports, RunPhase, RunResult, RunStatus, StartRun, StepHeld
from psrl.schemas.messages.training import StepRequest
from psrl.workflows.calls import settings
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

Run = WorkflowHandle[TrainingRun, RunResult]
ONE_INSTANCE = {"n_rollout_instances": 1, "restart_budget": 2}
HOST = InstanceId("rollout-0")


@pytest.fixture(autouse=True)
def seconds_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows run outside the sandbox, which would import the settings anew."""
    monkeypatch.setattr(settings, "SWEEP", timedelta(seconds=1))
    monkeypatch.setattr(settings, "UNDERWAY", timedelta())


class Held(ScriptedParts):
    """The first update waits until the test lets it go on."""

    def __init__(self, total_steps: int = 3, instances: int = 1) -> None:
        super().__init__(instances=instances, total_steps=total_steps)
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()
        self.starts: asyncio.Queue[InstanceId] = asyncio.Queue()

    async def on_update(self, request: StepRequest) -> None:
        self.reached.set()
        await self.let_go.wait()

    async def on_start(self, instance: InstanceId) -> None:
        self.starts.put_nowait(instance)


@asynccontextmanager
async def running(client: Client, run_id: str, parts: ScriptedParts, **psrl: object) -> AsyncIterator[Run]:
    config = minimal_config(**{"deployment": ONE_INSTANCE, **psrl})
    async with parts.workers(client, workflow_runner=UnsandboxedWorkflowRunner()):
        yield await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )


async def end(client: Client, workflow_id: str) -> None:
    await client.get_workflow_handle(workflow_id).terminate("ended from outside")


async def failure_of(run: Run) -> str:
    with pytest.raises(WorkflowFailureError) as failed:
        await run.result()
    return str(failed.value.cause)


async def test_an_instance_that_was_ended_is_started_anew(client: Client, run_id: str) -> None:
    parts = Held()
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await parts.starts.get()
        await end(client, instance_workflow(RunId(run_id), HOST))
        assert await parts.starts.get() == HOST
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE


async def test_a_sync_that_finds_no_instance_is_followed_by_a_look_at_once(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SWEEP", timedelta(hours=1))
    parts = Held()
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await parts.starts.get()
        await end(client, instance_workflow(RunId(run_id), HOST))
        parts.let_go.set()
        assert await parts.starts.get() == HOST
        assert (await run.result()).phase is RunPhase.DONE


async def test_a_run_whose_only_instance_keeps_ending_stops_and_names_it(client: Client, run_id: str) -> None:
    class Mortal(Held):
        async def on_start(self, instance: InstanceId) -> None:
            if self.reached.is_set():
                await end(client, instance_workflow(RunId(run_id), instance))
            await super().on_start(instance)

    parts = Mortal(total_steps=50)
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await end(client, instance_workflow(RunId(run_id), HOST))
        parts.let_go.set()
        told = await failure_of(run)
    assert "no rollout instance is left: rollout-0: its workflow ended as TERMINATED" in told
    assert "restarted 2 times" in told
    assert parts.phases[-1] == "failed"


async def test_an_instance_that_ends_while_the_run_comes_up_is_started_anew(client: Client, run_id: str) -> None:
    class EndedOnce(Held):
        async def on_start(self, instance: InstanceId) -> None:
            if self.starts.empty():
                await end(client, instance_workflow(RunId(run_id), instance))
            await super().on_start(instance)

    parts = EndedOnce(total_steps=1)
    parts.let_go.set()
    async with running(client, run_id, parts) as run:
        assert (await run.result()).phase is RunPhase.DONE
    assert parts.starts.qsize() == 2


async def test_a_group_that_was_ended_is_replaced(client: Client, run_id: str) -> None:
    class SlowReward(ScriptedParts):
        scoring = asyncio.Event()

        async def on_score(self, group: GroupId, index: int) -> Score:
            if group == "000001":
                self.scoring.set()
                await asyncio.Event().wait()
            return await super().on_score(group, index)

    parts = SlowReward(instances=1, total_steps=2)
    async with running(client, run_id, parts) as run:
        await parts.scoring.wait()
        await end(client, group_workflow(RunId(run_id), GroupId("000001")))
        assert (await run.result()).phase is RunPhase.DONE
        assert (await run.query(TrainingRun.status)).dropped == {"failed": 1}
    assert parts.cancelled == {"000001": "failed"}


class SlowDraw(ScriptedParts):
    """The store takes the first groups only when the run has looked after its parts three times meanwhile."""

    def __init__(self) -> None:
        super().__init__(instances=1, total_steps=2)
        self.looks = asyncio.Semaphore(0)

    async def on_look(self, request: CollectReports) -> None:
        self.looks.release()

    @activity.defn(name="draw_groups")
    async def draw_groups(self, request: DrawRequest) -> DrawResult:
        for _ in range(0 if self.tags else 3):
            await self.looks.acquire()
        return await super().draw_groups(request)


async def test_groups_that_wait_to_be_drawn_are_not_missed(client: Client, run_id: str) -> None:
    parts = SlowDraw()
    async with running(client, run_id, parts) as run:
        assert (await run.result()).phase is RunPhase.DONE
        assert (await run.query(TrainingRun.status)).dropped == {}
    assert parts.cancelled == {}


async def test_a_step_that_was_ended_is_begun_anew_with_the_same_batch(client: Client, run_id: str) -> None:
    parts = Held(total_steps=2)
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await end(client, step_workflow(RunId(run_id), 0))
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE
    assert [step.buffer for step in parts.steps] == [0, 1]


class FullOnce(Held):
    """The first update finds no room on the trainer's disk; the next waits until the test lets it go on."""

    full = True

    async def on_update(self, request: StepRequest) -> None:
        if self.full:
            self.full = False
            raise ApplicationError("no space left", type="StorageFull")
        await super().on_update(request)


async def test_a_run_does_not_stay_paused_for_a_step_that_was_ended_while_it_was_held(
    client: Client, run_id: str
) -> None:
    parts = FullOnce(total_steps=2)
    async with running(client, run_id, parts) as run:
        await until(run, lambda status: (status.phase, status.reason) == (RunPhase.PAUSED, "no space left"))
        await end(client, step_workflow(RunId(run_id), 0))
        await parts.reached.wait()
        status = await run.query(TrainingRun.status)
        assert (status.phase, status.reason) == (RunPhase.RUNNING, "")
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE


async def test_a_step_that_is_not_the_runs_does_not_pause_it(client: Client, run_id: str) -> None:
    """Of an earlier execution: its word was on its way."""
    parts = Held(total_steps=2)
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await run.signal(TrainingRun.step_held, StepHeld(buffer=7, reason="no space left"))
        assert (await run.query(TrainingRun.status)).phase is RunPhase.RUNNING
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE


async def test_a_step_that_keeps_being_ended_stops_the_run_by_its_name(client: Client, run_id: str) -> None:
    class Mortal(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            await end(client, step_workflow(RunId(run_id), request.buffer))
            await asyncio.Event().wait()

    async with running(client, run_id, Mortal(instances=1)) as run:
        told = await failure_of(run)
    assert f"{run_id}/step/000000 has no result" in told


async def test_a_validation_round_that_was_ended_is_started_anew(client: Client, run_id: str) -> None:
    class SlowValidation(ScriptedParts):
        reached, let_go = asyncio.Event(), asyncio.Event()

        async def on_score(self, group: GroupId, index: int) -> Score:
            if group.startswith("v"):
                self.reached.set()
                await self.let_go.wait()
            return await super().on_score(group, index)

    parts = SlowValidation(instances=1, total_steps=1)
    data = {"train_files": ["t"], "val_files": ["v"], "max_response_length": 8}
    config = minimal_config(deployment=ONE_INSTANCE) | {"data": data, "trainer": {"val_before_train": False}}
    async with parts.workers(client, workflow_runner=UnsandboxedWorkflowRunner()):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await parts.reached.wait()
        await end(client, evaluation_workflow(RunId(run_id), Version(1)))
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE
        assert (await run.query(TrainingRun.status)).validation_accuracy == 0
    assert [(one.version, one.scored) for one in parts.evaluations] == [(1, 4)]


class NoRoom(ScriptedParts):
    """After the first groups the coordinator sees room nowhere, although an instance serves."""

    @activity.defn(name="plan_dispatch")
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        if self.tags:
            return DispatchPlan(rooms=(), reason="rollout-0 has 0 of 8 places free")
        return await super().plan_dispatch(request)


async def test_a_run_for_which_nothing_can_be_started_any_more_fails_with_the_reason(
    client: Client, run_id: str
) -> None:
    limits = {**ONE_INSTANCE, "no_instance_timeout_s": 2}
    async with running(client, run_id, NoRoom(instances=1), deployment=limits, staleness=0) as run:
        told = await failure_of(run)
    assert "none could be started for" in told
    assert "rollout-0 has 0 of 8 places free. Instances: rollout-0 (serving" in told


class Silent(Held):
    """The coordinator does not answer once two buffers are drawn."""

    def __init__(self, total_steps: int) -> None:
        super().__init__(total_steps)
        self.answer = asyncio.Event()

    @activity.defn(name="plan_dispatch")
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        if len(self.tags) >= 4:
            await self.answer.wait()
        return await super().plan_dispatch(request)


async def test_ready_buffers_are_trained_while_the_coordinator_is_away_and_the_wait_names_it(
    client: Client, run_id: str
) -> None:
    parts = Silent(total_steps=4)
    parts.let_go.set()
    parts.room_groups = 4
    async with running(client, run_id, parts, staleness=3) as run:
        status = await until(run, lambda status: status.step == 2 and status.waits)
        assert (status.waits[0].what, status.waits[0].owner) == ("room for new groups", "the coordinator")
        assert status.waits[0].deadline is not None
        parts.answer.set()
        assert (await run.result()).phase is RunPhase.DONE


async def test_a_run_that_was_asked_to_stop_says_so_and_heeds_no_resume(client: Client, run_id: str) -> None:
    parts = Held()
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await run.signal(TrainingRun.pause)
        await run.signal(TrainingRun.stop)
        assert (await run.query(TrainingRun.status)).phase is RunPhase.STOPPING
        await run.signal(TrainingRun.resume)
        assert "`resume` was not heeded" in (await run.query(TrainingRun.status)).notice
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.STOPPED


async def test_a_cancelled_run_gives_up_its_groups_and_releases_its_parts(client: Client, run_id: str) -> None:
    parts = Held()
    async with running(client, run_id, parts) as run:
        await parts.reached.wait()
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
    assert parts.phases[-1] == "failed"
    assert {"close_trainer", "release rollout-0"} <= set(parts.calls)


async def until(run: Run, holds: object) -> RunStatus:
    """The first status for which `holds`."""
    while True:
        status = await run.query(TrainingRun.status)
        if holds(status):  # type: ignore[operator]
            return status
        await asyncio.sleep(0.05)
