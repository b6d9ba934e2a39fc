"""Trajectories in which an environment answers each turn of the policy, as workflows."""

import asyncio

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from psrl.schemas.ids import CPU_QUEUE, ORCHESTRATOR_QUEUE, GroupId, InstanceId, RunId, group_workflow
from psrl.schemas.messages.environments import EnvironmentStep, StepEnvironment
from psrl.schemas.messages.episodes import TerminateReason
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from psrl.schemas.messages.rollout import RouteRequest, RouteResult, TurnRequest, TurnResult
from psrl.schemas.messages.run import GroupOutcome, GroupReport, StartGroup, TurnLimits
from psrl.workflows.calls import settings
from psrl.workflows.rollout.group import RolloutGroup
from tests.support.groups import rollout_settings
from tests.support.scripted_parts import KEPT, ScriptedParts

GROUP = GroupId("000007")


def start(run_id: str, trajectory_s: float | None = None, **rollout: object) -> StartGroup:
    return StartGroup(
        run_id=RunId(run_id),
        group_id=GROUP,
        run_workflow_id="nobody",
        version_tag=0,
        rollout=rollout_settings(turns=TurnLimits(attempt_s=60, trajectory_s=trajectory_s), **rollout),
    )


class Played(ScriptedParts):
    """The environment has `turns` turns, and is kept by the process behind `KEPT`."""

    turns = 3

    def __init__(self) -> None:
        super().__init__()
        self.versions[InstanceId("rollout-0")] = 0
        self.routed: list[RouteRequest] = []

    @activity.defn(name="route")
    async def route(self, request: RouteRequest) -> RouteResult:
        self.routed.append(request)
        return await super().route(request)

    async def on_step(self, request: StepEnvironment, queue: str) -> EnvironmentStep:
        if request.turn + 1 == self.turns:
            return EnvironmentStep(ended=TerminateReason.FINISHED)
        return EnvironmentStep(max_tokens=7 - request.turn, queue=KEPT)

    def of(self, index: int) -> list[TurnRequest]:
        return [request for request in self.generated if request.trajectory.index == index]


async def play(client: Client, parts: ScriptedParts, request: StartGroup) -> GroupReport:
    async with parts.workers(client):
        return await client.execute_workflow(
            RolloutGroup.run, request, id=group_workflow(request.run_id, GROUP), task_queue=ORCHESTRATOR_QUEUE
        )


async def test_turns_alternate_with_the_environment_until_it_is_done(client: Client, run_id: str) -> None:
    parts = Played()
    report = await play(client, parts, start(run_id))
    assert (report.outcome, report.tokens) == (GroupOutcome.COMPLETE, 2 * 3 * 3)
    assert [request.turn for request in parts.of(0)] == [0, 1, 2]
    assert [request.sampling.max_tokens for request in parts.of(0)] == [8, 7, 6]
    assert len({request.sampling.seed for request in parts.of(0)}) == 3
    calls = [request.call for request in parts.of(0)]
    assert calls == sorted(set(calls)), "a later call has the higher fence"
    assert parts.closed == [], "what has ended is closed already"


async def test_a_step_goes_to_the_process_that_keeps_the_environment(client: Client, run_id: str) -> None:
    parts = Played()
    await play(client, parts, start(run_id))
    queues = [queue for queue, request in parts.stepped if request.index == 1]
    assert queues == [CPU_QUEUE, KEPT, KEPT]


async def test_the_next_turn_prefers_the_instance_of_the_one_before(client: Client, run_id: str) -> None:
    parts = Played()
    parts.versions[InstanceId("rollout-1")] = 0
    await play(client, parts, start(run_id))
    asked = {(request.prefer, index) for request in parts.routed for index in request.indices}
    assert asked == {(None, 0), (None, 1), ("rollout-0", 0), ("rollout-1", 1)}


async def test_a_process_that_is_gone_costs_one_step_that_another_repeats(client: Client, run_id: str) -> None:
    class Dies(Played):
        async def on_step(self, request: StepEnvironment, queue: str) -> EnvironmentStep:
            if queue == KEPT and request.turn == 1:
                raise ApplicationError("the process died", type="Died")
            return await super().on_step(request, queue)

    parts = Dies()
    report = await play(client, parts, start(run_id))
    assert report.outcome is GroupOutcome.COMPLETE
    of_one = [(queue, request.turn) for queue, request in parts.stepped if request.index == 0]
    assert of_one == [(CPU_QUEUE, 0), (KEPT, 1), (CPU_QUEUE, 1), (KEPT, 2)]


async def test_a_queue_that_nobody_serves_any_more_is_left(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Played()
    monkeypatch.setattr(settings, "POLL_START", settings.SHORT / 10)
    async with parts.workers(client, without=[KEPT]):
        request = start(run_id)
        report = await client.execute_workflow(
            RolloutGroup.run, request, id=group_workflow(request.run_id, GROUP), task_queue=ORCHESTRATOR_QUEUE
        )
    assert report.outcome is GroupOutcome.COMPLETE
    assert {queue for queue, _ in parts.stepped} == {CPU_QUEUE}


@pytest.mark.parametrize("ended", [TerminateReason.MAX_TURNS_EXCEEDED, TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED])
async def test_a_limit_is_an_end_like_any_other(client: Client, run_id: str, ended: TerminateReason) -> None:
    class Limited(Played):
        async def on_step(self, request: StepEnvironment, queue: str) -> EnvironmentStep:
            return EnvironmentStep(ended=ended)

    assert (await play(client, Limited(), start(run_id))).outcome is GroupOutcome.COMPLETE


async def test_a_failed_environment_fails_its_trajectory_with_the_reason(client: Client, run_id: str) -> None:
    class Fails(Played):
        async def on_step(self, request: StepEnvironment, queue: str) -> EnvironmentStep:
            if request.index == 0:
                return EnvironmentStep(ended=TerminateReason.ENV_TIMEOUT, error="step took longer than it may")
            return await super().on_step(request, queue)

    parts = Fails()
    report = await play(client, parts, start(run_id))
    assert report.outcome is GroupOutcome.FAILED
    assert report.reason == "t00: env_timeout: step took longer than it may"
    parts = Fails()
    report = await play(client, parts, start(f"{run_id}-spare", needed=2, offered=3))
    assert report.outcome is GroupOutcome.COMPLETE


async def test_environments_of_siblings_that_nobody_needs_are_closed(client: Client, run_id: str) -> None:
    others_are_done = asyncio.Event()

    class OneIsSlow(Played):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if (request.trajectory.index, request.turn) == (2, 1):
                await asyncio.Event().wait()
            return self.finished(request, instance)

        async def on_score(self, group: GroupId, index: int) -> Score:
            others_are_done.set()
            return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0)

    parts = OneIsSlow()
    report = await play(client, parts, start(run_id, needed=2, offered=3))
    assert report.outcome is GroupOutcome.COMPLETE
    assert [request.indices for request in parts.closed] == [(2,)]


async def test_environments_of_a_group_that_is_cancelled_are_closed(client: Client, run_id: str) -> None:
    under_way = asyncio.Event()

    class NeverEnds(Played):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.turn == 1:
                if len({r.trajectory.index for r in self.generated if r.turn == 1}) == 2:
                    under_way.set()
                await asyncio.Event().wait()
            return self.finished(request, instance)

    parts = NeverEnds()
    async with parts.workers(client):
        request = start(run_id)
        group = await client.start_workflow(
            RolloutGroup.run, request, id=group_workflow(request.run_id, GROUP), task_queue=ORCHESTRATOR_QUEUE
        )
        await under_way.wait()
        await group.cancel()
        with pytest.raises(Exception, match="Workflow execution failed"):
            await group.result()
    assert [request.indices for request in parts.closed] == [(0, 1)]


async def test_a_trajectory_that_takes_longer_than_it_may_fails_and_says_so(skipping: Client, run_id: str) -> None:
    class Hangs(Played):
        async def on_step(self, request: StepEnvironment, queue: str) -> EnvironmentStep:
            if request.index == 1:
                while True:
                    activity.heartbeat()
                    await asyncio.sleep(0.1)
            return await super().on_step(request, queue)

    report = await play(skipping, Hangs(), start(run_id, trajectory_s=30))
    assert report.outcome is GroupOutcome.FAILED
    assert "trajectory_timeout: not finished within psrl.agentic_rl.trajectory_timeout_s=30" in report.reason
