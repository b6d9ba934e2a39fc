"""A run whose buffers are long, on a server with a short limit: it continues as new whenever the server suggests it."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from psrl.schemas.messages.run import RunPhase, RunResult, StartRun, Wait
from psrl.workflows.calls import settings
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config
from tests.support.temporal import TemporalServer, running_temporal

SUGGESTED, TERMINATED = 150, 1000
"""Events; by default 4,096 and 51,200."""
LIMITS = {
    "limit.historyCount.suggestContinueAsNew": str(SUGGESTED),
    "limit.historyCount.warn": str(TERMINATED - 1),
    "limit.historyCount.error": str(TERMINATED),
}
FILTER = {"enable": True, "name": "dynamic_sampling_filter"}
Run = WorkflowHandle[TrainingRun, RunResult]


@pytest.fixture(scope="module")
def short_server() -> Iterator[TemporalServer]:
    with running_temporal(LIMITS) as server:
        yield server


@pytest.fixture
async def client(short_server: TemporalServer) -> Client:
    return await short_server.connect()


class MostlyFlat(ScriptedParts):
    """Nine groups of ten have equal rewards."""

    async def on_score(self, group: GroupId, index: int) -> Score:
        flat = int(group) % 10 != 0
        return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0 if flat else float(index))


class NeverScored(ScriptedParts):
    """From one group on nothing is scored until the test says so."""

    def __init__(self) -> None:
        super().__init__(instances=1, total_steps=2)
        self.scoring, self.let_go = asyncio.Event(), asyncio.Event()

    async def on_score(self, group: GroupId, index: int) -> Score:
        self.scoring.set()
        await self.let_go.wait()
        return await super().on_score(group, index)


async def lengths(client: Client, run_id: str) -> list[int]:
    """Events in each execution of the run so far."""
    executions = client.list_workflows(f"WorkflowId = '{run_id}'")
    return [execution.history_length async for execution in executions]


async def executions_reach(client: Client, run_id: str, count: int) -> None:
    while len(await lengths(client, run_id)) < count:  # noqa: ASYNC110 - visibility is asked, it tells nobody
        await asyncio.sleep(0.1)


async def test_a_buffer_of_which_most_groups_are_filtered_outlasts_a_history(client: Client, run_id: str) -> None:
    parts = MostlyFlat(instances=1, prompts=1000, total_steps=2)
    parts.room_groups = 16
    config = minimal_config(
        staleness_buffer_entries=8, group_post_process=FILTER, deployment={"n_rollout_instances": 1}
    )
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        result = await run.result()
        assert (result.phase, result.version) == (RunPhase.DONE, 2)
        assert len(parts.trained) == 16
        await executions_reach(client, run_id, 4)
        assert max(await lengths(client, run_id)) < TERMINATED
        dropped = (await run.query(TrainingRun.status)).dropped
    drawn = len(parts.tags)
    assert drawn * 9 // 10 - 16 <= dropped["filtered"] <= drawn - 16, "every filtered group is counted once"


@pytest.fixture
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For workflows outside the sandbox, which would import the settings anew."""
    monkeypatch.setattr(settings, "SWEEP", timedelta(seconds=0.1))
    monkeypatch.setattr(settings, "UNDERWAY", timedelta())


@pytest.mark.usefixtures("frequent_sweeps")
@pytest.mark.parametrize("paused", [True, False])
async def test_a_run_that_waits_continues_as_new_as_it_is(client: Client, run_id: str, paused: bool) -> None:
    """With its pause, its groups and their deadlines."""
    parts = NeverScored()
    config = minimal_config(deployment={"n_rollout_instances": 1})
    async with parts.workers(client, workflow_runner=UnsandboxedWorkflowRunner()):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await parts.scoring.wait()
        before = await settled(run)
        assert "group 000000" in before.otherwise
        if paused:
            await run.signal(TrainingRun.pause)
        await executions_reach(client, run_id, 3)
        status = await run.query(TrainingRun.status)
        phase = RunPhase.PAUSED if paused else RunPhase.RUNNING
        assert (status.phase, status.step, status.live_groups) == (phase, 0, 4)
        if paused:
            await run.signal(TrainingRun.resume)
        after = await settled(run)
        assert (after.otherwise, after.deadline) == (before.otherwise, before.deadline)
        parts.let_go.set()
        assert (await run.result()).phase is RunPhase.DONE
        assert max(await lengths(client, run_id)) < TERMINATED
    assert len(parts.tags) == 4, "nothing was lost, so nothing was drawn again"


async def settled(run: Run) -> Wait:
    """What the run waits for when the wave of its groups is over: until then their deadlines move."""
    while True:
        for wait in (await run.query(TrainingRun.status)).waits:
            if "every group the run needs is drawn" in wait.what:
                return wait
        await asyncio.sleep(0.05)


async def test_a_validation_round_of_many_prompts_outlasts_a_history(client: Client, run_id: str) -> None:
    parts = ScriptedParts(instances=1, total_steps=1)
    parts.validation_prompts = 150
    config = minimal_config(deployment={"n_rollout_instances": 1})
    config["data"] = {**config["data"], "val_files": ["validation.jsonl"]}  # type: ignore[dict-item]
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        assert (await run.result()).phase is RunPhase.DONE
        rounds = {f"{run_id}/evaluation/{version:06d}" for version in (0, 1)}
        for name in rounds:
            assert max(await lengths(client, name)) < TERMINATED
    assert [(report.version, report.scored, report.failed) for report in parts.evaluations] == [
        (0, 150, 0),
        (1, 150, 0),
    ]
    answered = [request.trajectory for request in parts.generated if not request.trajectory.group_id.isdigit()]
    assert len(set(answered)) == len(answered) == 300, "a prompt was answered twice or not at all"
