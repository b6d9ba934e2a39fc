"""A run that ended early and is taken up again, against scripted parts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId
from psrl.schemas.messages.data import ReopenRun
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from psrl.schemas.messages.run import RunPhase, RunResult, StartRun, StopRun
from psrl.schemas.messages.training import StepRequest
from psrl.workflows.calls import settings
from psrl.workflows.calls.lifetime import while_alive
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

Run = WorkflowHandle[TrainingRun, RunResult]


class HeldAt(ScriptedParts):
    """Updates of one buffer wait until the test lets them go on."""

    def __init__(self, buffer: int, **options: Any) -> None:
        super().__init__(**options)
        self.buffer = buffer
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()

    async def on_update(self, request: StepRequest) -> None:
        if request.buffer == self.buffer:
            self.reached.set()
            await self.let_go.wait()


async def start(client: Client, run_id: str, config: dict[str, object] | None = None) -> Run:
    """A new run with a configuration, else the same one taken up."""
    request = StartRun(resume=True) if config is None else StartRun(config=config)
    return await client.start_workflow(TrainingRun.run, request, id=run_id, task_queue=ORCHESTRATOR_QUEUE)


@asynccontextmanager
async def held(client: Client, run_id: str, parts: HeldAt) -> AsyncIterator[Run]:
    async with parts.workers(client):
        run = await start(client, run_id, minimal_config())
        await parts.reached.wait()
        yield run


def every_prompt_once(parts: ScriptedParts) -> None:
    places = [parts.places[group] for group in parts.trained]
    assert len(set(places)) == len(places), "a prompt was trained on twice"
    assert sorted(places) == list(range(len(places))), "a prompt was left out"


async def test_a_stopped_run_goes_on_and_neither_skips_nor_repeats_a_prompt(client: Client, run_id: str) -> None:
    parts = HeldAt(buffer=1, total_steps=6)
    async with held(client, run_id, parts) as run:
        await run.signal(TrainingRun.stop)
        parts.let_go.set()
        stopped = await run.result()
        assert (stopped.phase, stopped.version) == (RunPhase.STOPPED, 2)
        again = await (await start(client, run_id)).result()
    assert (again.phase, again.version) == (RunPhase.DONE, 6)
    assert sorted(parts.batches) == list(range(6))
    every_prompt_once(parts)
    assert "reopened" in parts.phases


async def test_a_step_that_was_abandoned_is_trained_first_with_the_same_batch(client: Client, run_id: str) -> None:
    parts = HeldAt(buffer=1, total_steps=4)
    async with held(client, run_id, parts) as run:
        await run.signal(TrainingRun.stop, StopRun(now=True))
        stopped = await run.result()
        assert (stopped.phase, stopped.version) == (RunPhase.STOPPED, 1)
        assert "checkpoint v1" not in parts.calls, "a run that ends now does not wait for a checkpoint"
        taken = parts.batches[1].taken
        parts.let_go.set()
        again = await (await start(client, run_id)).result()
    assert (again.phase, again.version) == (RunPhase.DONE, 4)
    assert parts.batches[1].taken == taken
    every_prompt_once(parts)


async def test_a_run_that_is_paused_while_it_comes_up_does_not_train_its_open_batch(
    client: Client, run_id: str
) -> None:
    class PausedAtStart(HeldAt):
        resting, too_soon = asyncio.Event(), False

        @activity.defn(name="reopen_run")
        async def reopen_run(self, request: ReopenRun) -> None:
            self.resting.set()
            await client.get_workflow_handle(run_id).signal(TrainingRun.pause)
            await super().reopen_run(request)

        async def on_log_probs(self, request: StepRequest) -> None:
            self.too_soon |= self.resting.is_set()

    parts = PausedAtStart(buffer=1, total_steps=4)
    async with held(client, run_id, parts) as run:
        await run.signal(TrainingRun.stop, StopRun(now=True))
        await run.result()
        parts.let_go.set()
        again = await start(client, run_id)
        async with asyncio.timeout(60):
            while parts.phases[-1] != "running":  # noqa: ASYNC110 - told by an activity
                await asyncio.sleep(0.02)
        await again.signal(TrainingRun.pause)
        status = await again.query(TrainingRun.status)
        assert (status.phase, [wait.what for wait in status.waits]) == (RunPhase.PAUSED, ["signal `resume`"])
        parts.resting.clear()
        await again.signal(TrainingRun.resume)
        assert (await again.result()).version == 4
    assert not parts.too_soon
    every_prompt_once(parts)


async def test_groups_that_were_complete_are_not_generated_again(client: Client, run_id: str) -> None:
    parts = HeldAt(buffer=0, total_steps=3)
    async with held(client, run_id, parts) as run:
        async with asyncio.timeout(30):
            while (await run.query(TrainingRun.status)).occupied_groups < 2:  # noqa: ASYNC110 - asked of the run
                await asyncio.sleep(0.02)
        await run.signal(TrainingRun.stop, StopRun(now=True))
        await run.result()
        complete = set(parts.tags) - set(parts.trained) - set(parts.cancelled)
        assert len(complete) >= 2
        parts.let_go.set()
        await (await start(client, run_id)).result()
    assert complete <= set(parts.trained)
    assert all(parts.times_generated(group, index) == 1 for group in complete for index in range(2))


async def test_a_run_that_was_terminated_goes_on_although_its_instances_still_live(client: Client, run_id: str) -> None:
    parts = HeldAt(buffer=1, total_steps=4)
    async with held(client, run_id, parts) as run:
        await run.terminate()
        parts.let_go.set()
        again = await (await start(client, run_id)).result()
    assert (again.phase, again.version) == (RunPhase.DONE, 4)
    every_prompt_once(parts)


async def test_a_run_that_is_still_going_cannot_be_started_again(client: Client, run_id: str) -> None:
    parts = HeldAt(buffer=0, total_steps=2)
    async with held(client, run_id, parts) as run:
        with pytest.raises(Exception, match="already started"):
            await start(client, run_id)
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE


async def test_an_unfinished_child_step_of_a_failed_run_does_not_block_the_next_one(
    client: Client, run_id: str
) -> None:
    parts = HeldAt(buffer=0, total_steps=2)
    async with held(client, run_id, parts) as run:
        await run.cancel()
        with pytest.raises(WorkflowFailureError):
            await run.result()
        parts.let_go.set()
        again = await (await start(client, run_id)).result()
    assert (again.phase, again.version) == (RunPhase.DONE, 2)
    every_prompt_once(parts)


ABSENT_S = 5.0


async def test_what_failed_because_the_stack_was_away_says_nothing_about_the_task(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group in flight fails after the stack was away for long: more than the run would bear otherwise."""
    monkeypatch.setattr(settings, "SWEEP", timedelta(seconds=0.5))
    monkeypatch.setattr(settings, "ABSENCE", timedelta(seconds=3))

    class Away(ScriptedParts):
        back = False

        def __init__(self) -> None:
            super().__init__(total_steps=2)
            self.scoring, self.lost = asyncio.Event(), set[GroupId]()

        async def on_score(self, group: GroupId, index: int) -> Score:
            if not self.back:
                self.lost.add(group)
                self.scoring.set()
                await asyncio.Event().wait()
            if group in self.lost:
                return Score(index=index, outcome=ScoreOutcome.FAILED, error="too late")
            return await super().on_score(group, index)

    parts = Away()
    # Outside the sandbox, which would import the settings anew.
    async with parts.workers(client, workflow_runner=UnsandboxedWorkflowRunner()):
        run = await start(client, run_id, minimal_config(agentic_rl={"refill_failure_threshold": 1}))
        await parts.scoring.wait()
    await asyncio.sleep(ABSENT_S)
    parts.back = True
    async with parts.workers(client, workflow_runner=UnsandboxedWorkflowRunner()):
        result = await run.result()
    assert (result.phase, result.version) == (RunPhase.DONE, 2)
    assert parts.lost
    assert not parts.lost & set(parts.trained)


@workflow.defn
class Waiting:
    """Waits for what never comes."""

    @workflow.run
    async def run(self, limit_s: float) -> float:
        began = workflow.time()
        try:
            await while_alive(lambda: False, timedelta(seconds=limit_s))
        except TimeoutError:
            return workflow.time() - began
        raise AssertionError


async def test_a_limit_counts_only_the_time_in_which_somebody_runs_the_workflow(client: Client, run_id: str) -> None:
    queue, limit_s = f"alone-{run_id}", 20.0

    def worker() -> Worker:
        runner = UnsandboxedWorkflowRunner()
        return Worker(client, task_queue=queue, workflows=[Waiting], workflow_runner=runner)

    async with worker():
        handle = await client.start_workflow(Waiting.run, limit_s, id=run_id, task_queue=queue)
        await asyncio.sleep(1)
    await asyncio.sleep(10)
    async with worker():
        waited_s = await handle.result()
    assert waited_s > limit_s + 3
