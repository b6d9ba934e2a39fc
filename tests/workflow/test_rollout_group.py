"""One group's trajectories as concurrent state machines."""

import asyncio
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from psrl.schemas.errors import DataError, InvariantViolated
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, InstanceId, RunId, group_workflow
from psrl.schemas.messages.rewards import GroupVerdict, Score, ScoreOutcome, Verdict
from psrl.schemas.messages.rollout import (
    Placement,
    RouteRequest,
    RouteResult,
    TurnRequest,
    TurnResult,
)
from psrl.schemas.messages.run import GroupOutcome, GroupReport, GroupReports, StartGroup
from psrl.workflows.rollout.group import RolloutGroup
from psrl.workflows.rollout.trajectory import LEGAL, Trajectory, TrajectoryState
from tests.support.groups import rollout_settings
from tests.support.scripted_parts import ScriptedParts

GROUP = GroupId("000007")


def start(run_id: str, group: GroupId = GROUP, version_tag: int = 0, **rollout: object) -> StartGroup:
    return StartGroup(
        run_id=RunId(run_id),
        group_id=group,
        run_workflow_id="nobody",
        version_tag=version_tag,
        rollout=rollout_settings(**rollout),
    )


async def begin(client: Client, request: StartGroup) -> WorkflowHandle[RolloutGroup, GroupReport]:
    return await client.start_workflow(
        RolloutGroup.run, request, id=group_workflow(request.run_id, request.group_id), task_queue=ORCHESTRATOR_QUEUE
    )


async def play(client: Client, parts: ScriptedParts, request: StartGroup) -> GroupReport:
    parts.versions.setdefault(InstanceId("rollout-0"), 0)
    async with parts.workers(client):
        return await (await begin(client, request)).result()


async def test_a_group_reports_complete_with_its_mean_reward_and_scores_once(client: Client, run_id: str) -> None:
    parts = ScriptedParts()
    report = await play(client, parts, start(run_id))
    assert (report.outcome, report.reward_mean, report.tokens, report.segments) == (GroupOutcome.COMPLETE, 0.5, 6, 2)


async def test_a_group_ends_though_its_run_cannot_be_told(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's sweep then fetches the report of a group that has ended."""
    told: list[GroupReport] = []

    async def signal(handle: WorkflowHandle[Any, Any], name: str, reports: GroupReports) -> None:
        told.extend(reports.reports)
        raise RPCError("refused", RPCStatusCode.RESOURCE_EXHAUSTED, b"")

    monkeypatch.setattr(WorkflowHandle, "signal", signal)
    async with asyncio.timeout(30):
        report = await play(client, ScriptedParts(), start(run_id))
    assert set(told) == {report}
    assert len(told) > 1


async def test_a_group_ends_at_its_deadline_though_no_coordinator_answers(client: Client, run_id: str) -> None:
    class Unrouted(ScriptedParts):
        @activity.defn(name="route")
        async def route(self, request: RouteRequest) -> RouteResult:
            raise ApplicationError("nobody there", type="Unreachable")

    async with asyncio.timeout(30):
        report = await play(client, Unrouted(), start(run_id, timeout_s=3))
    assert report.outcome is GroupOutcome.FAILED
    assert "took it before the deadline (asking for an instance failed: nobody there)" in report.reason


async def test_every_trajectory_samples_with_its_own_seed_also_after_an_interruption(
    client: Client, run_id: str
) -> None:
    class Interrupted(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.call < 2:
                return self.interrupted(request, tokens=1)
            return self.finished(request, instance)

    parts = Interrupted()
    await play(client, parts, start(run_id))
    seeds = {index: {r.sampling.seed for r in parts.generated if r.trajectory.index == index} for index in (0, 1)}
    assert [len(of_one) for of_one in seeds.values()] == [1, 1]
    assert seeds[0] != seeds[1]


async def test_the_first_finished_win_and_the_slow_ones_are_cancelled_down_to_the_engine(
    client: Client, run_id: str
) -> None:
    cancelled = asyncio.Event()

    class OneHangs(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.trajectory.index == 1:
                try:
                    while True:
                        activity.heartbeat()
                        await asyncio.sleep(0.1)
                finally:
                    cancelled.set()
            return self.finished(request, instance)

    report = await play(client, OneHangs(), start(run_id, offered=3))
    assert report.outcome is GroupOutcome.COMPLETE
    await asyncio.wait_for(cancelled.wait(), 15)


async def test_an_undisturbed_group_is_one_generate_call_one_score_and_twenty_events(
    client: Client, run_id: str
) -> None:
    parts = ScriptedParts()
    parts.versions[InstanceId("rollout-0")] = 0
    async with parts.workers(client):
        group = await begin(client, start(run_id, needed=8, offered=8))
        await group.result()
        history = await group.fetch_history()
    scheduled = [e.activity_task_scheduled_event_attributes for e in history.events]
    ids = [attributes.activity_id for attributes in scheduled if attributes.activity_id]
    assert ids == ["t00-t07-s0", "score-t00-t07"]
    assert len(history.events) <= 20


async def test_a_group_that_is_told_where_to_begin_asks_only_for_the_places_that_are_missing(
    client: Client, run_id: str
) -> None:
    class Asked(ScriptedParts):
        asked: list[tuple[int, ...]] = []

        @activity.defn(name="route")
        async def route(self, request: RouteRequest) -> RouteResult:
            self.asked.append(request.indices)
            return await super().route(request)

    told = tuple(Placement(index=index, instance=InstanceId("rollout-0"), version=0) for index in range(3))
    parts = Asked()
    report = await play(client, parts, start(run_id, needed=4, offered=4).model_copy(update={"placements": told}))
    assert report.outcome is GroupOutcome.COMPLETE
    assert parts.asked == [(3,)]


async def test_one_interrupted_of_eight_is_routed_anew_while_the_next_call_attaches_to_the_others(
    client: Client, run_id: str
) -> None:
    others_may_end = asyncio.Event()

    class OneInterrupted(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.trajectory.index == 3:
                if request.call == 0:
                    return self.interrupted(request, tokens=1)
                others_may_end.set()
            else:
                await others_may_end.wait()
            return self.finished(request, instance)

    parts = OneInterrupted()
    report = await play(client, parts, start(run_id, needed=8, offered=8))
    assert (report.outcome, report.tokens) == (GroupOutcome.COMPLETE, 24)
    assert [parts.times_generated(GROUP, index) for index in range(8)] == [1, 1, 1, 2, 1, 1, 1, 1]
    asked = sorted(tuple(called.index for called in call.turns) for call in parts.generate_calls)
    assert asked == [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 4, 5, 6, 7), (3,)]


async def test_when_enough_have_finished_the_rest_goes_on_only_if_a_reward_fails(client: Client, run_id: str) -> None:
    class Slow(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.trajectory.index == 2 and request.call == 0:
                await asyncio.Event().wait()
            return self.finished(request, instance)

        async def on_score(self, group: GroupId, index: int) -> Score:
            if index == 0 and self.fails:
                return Score(index=index, outcome=ScoreOutcome.FAILED, error="no verdict")
            return await super().on_score(group, index)

        fails = False

    for fails, times in ((False, 1), (True, 2)):
        parts = Slow()
        parts.fails = fails
        report = await play(client, parts, start(f"{run_id}-{times}", offered=3))
        assert report.outcome is GroupOutcome.COMPLETE
        assert parts.times_generated(GROUP, 2) == times
        assert parts.generate_calls[0].enough == 2


async def test_a_slow_judge_does_not_hold_its_siblings_when_rewards_are_not_coalesced(
    client: Client, run_id: str
) -> None:
    class SlowJudge(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            if index == 0:
                while True:
                    activity.heartbeat()
                    await asyncio.sleep(0.1)
            return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0)

    report = await play(client, SlowJudge(), start(run_id, offered=3, coalesce_rewards=False))
    assert report.outcome is GroupOutcome.COMPLETE


async def test_a_failed_reward_fails_the_group_and_is_no_zero(client: Client, run_id: str) -> None:
    class Failing(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            return Score(index=index, outcome=ScoreOutcome.FAILED, error="ValueError: no verdict")

    report = await play(client, Failing(), start(run_id))
    assert report.outcome is GroupOutcome.FAILED
    assert report.reward_mean is None
    assert "no verdict" in report.reason


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict.KEEP, GroupOutcome.COMPLETE),
        (Verdict.DROP, GroupOutcome.FILTERED),
        (Verdict.FAILED, GroupOutcome.FAILED),
    ],
)
@pytest.mark.parametrize("coalesced", [True, False])
async def test_the_verdict_that_comes_with_the_scores_decides_what_becomes_of_a_complete_group(
    client: Client, run_id: str, verdict: Verdict, outcome: GroupOutcome, coalesced: bool
) -> None:
    class Filtered(ScriptedParts):
        async def verdict(self, group_id: GroupId) -> GroupVerdict | None:
            complete = len(self.scored) == 2
            return GroupVerdict(verdict=verdict, reason=f"said {verdict}") if complete else None

    report = await play(client, Filtered(), start(run_id, coalesce_rewards=coalesced))
    assert (report.outcome, report.reason) == (outcome, f"said {verdict}")


async def test_a_spare_trajectory_replaces_one_whose_reward_failed(client: Client, run_id: str) -> None:
    class FirstFails(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            failed = index == 0
            outcome = ScoreOutcome.FAILED if failed else ScoreOutcome.SCORED
            return Score(index=index, outcome=outcome, reward=None if failed else 1.0, error="x" if failed else "")

    report = await play(client, FirstFails(), start(run_id, offered=3))
    assert (report.outcome, report.reward_mean) == (GroupOutcome.COMPLETE, 1.0)


async def test_a_host_that_fails_is_left_and_the_trajectory_goes_on_elsewhere(client: Client, run_id: str) -> None:
    class FirstHostFails(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if instance == "rollout-0":
                self.versions.pop(instance, None)
                raise RuntimeError("engine is gone")
            return self.finished(request, instance)

    parts = FirstHostFails()
    parts.versions = {InstanceId("rollout-0"): 0, InstanceId("rollout-1"): 0}
    report = await play(client, parts, start(run_id))
    assert report.outcome is GroupOutcome.COMPLETE


async def test_a_fatal_answer_fails_the_trajectory_at_once(client: Client, run_id: str) -> None:
    class Refusing(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.trajectory.index == 0:
                raise DataError("prompt is longer than the context")
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.1)

    parts = Refusing()
    report = await play(client, parts, start(run_id))
    assert report.outcome is GroupOutcome.FAILED
    assert "prompt is longer than the context" in report.reason
    assert len(parts.generate_calls) == 1


async def test_a_group_that_finds_no_room_fails_at_its_deadline_and_says_so(skipping: Client, run_id: str) -> None:
    class NoRoom(ScriptedParts):
        @activity.defn(name="route")
        async def route(self, request: RouteRequest) -> RouteResult:
            return RouteResult(placements=(), reason="all full")

    report = await play(skipping, NoRoom(), start(run_id, timeout_s=30))
    assert report.outcome is GroupOutcome.FAILED
    assert report.reason == "t00: no instance at v0 or newer took it before the deadline (all full)"


async def test_the_trace_names_turn_tokens_version_and_instance(client: Client, run_id: str) -> None:
    parts = ScriptedParts()
    parts.versions[InstanceId("rollout-0")] = 4
    async with parts.workers(client):
        group = await begin(client, start(run_id, version_tag=4))
        await group.result()
        lines = await group.query(RolloutGroup.trajectories)
    assert lines[0] == "t00 turn 1: 3 tokens, v4, rollout-0, scored, reward 0"


def test_an_illegal_transition_is_refused_and_names_what_was_allowed() -> None:
    trajectory = Trajectory(3)
    with pytest.raises(
        InvariantViolated,
        match="t03: routing -> scored is not allowed; allowed: aborted, failed, generating",
    ):
        trajectory.to(TrajectoryState.SCORED)


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(LEGAL) == set(TrajectoryState)
    reached = {TrajectoryState.ROUTING}.union(*LEGAL.values())
    assert reached == set(TrajectoryState)
