"""The fleet's accounting."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrl.schemas.config import CandidateOrder, RoutingMethod, RoutingStrategy
from psrl.schemas.cost_model import CostModel
from psrl.schemas.ids import GroupId, RunId
from psrl.schemas.messages.rollout import DispatchPlanRequest, InstanceReport, InstanceState, RouteRequest, RouteResult
from psrl.workers.coordinator.fleet import DECAY_S, SILENCE_S, Fleet

RUN = RunId("run")
COST = CostModel(
    other_threshold=0.01, other_latency_b=0.0, other_latency_k=0.0, attn_latency_b=0.0, attn_latency_k=1e-7
)
"""A further request costs next to nothing."""


def report(name: str, version: int = 0, state: InstanceState = InstanceState.SERVING, **more: object) -> InstanceReport:
    values = {"run_id": RUN, "max_num_seqs": 4, "pid": 1, "cost": COST, **more}
    return InstanceReport.model_validate({"instance": name, "version": version, "state": state, **values})


def ask(count: int, tag: int = 0, method: RoutingMethod = RoutingMethod.REQUEST_NUM_BALANCE) -> RouteRequest:
    return RouteRequest(
        run_id=RUN,
        group_id=GroupId("000000"),
        indices=tuple(range(count)),
        version_tag=tag,
        strategy=RoutingStrategy(method=method, cost_model_path="cost.json"),
    )


def with_strategy(request: RouteRequest, **strategy: Any) -> RouteRequest:
    return request.model_copy(update={"strategy": RoutingStrategy(**strategy)})


def plan(per_group: int, **strategy: Any) -> DispatchPlanRequest:
    return DispatchPlanRequest(run_id=RUN, trajectories_per_group=per_group, strategy=RoutingStrategy(**strategy))


def on_each(result: RouteResult) -> dict[str, int]:
    return Counter(placement.instance for placement in result.placements)


@pytest.mark.parametrize("method", RoutingMethod)
def test_a_group_goes_to_one_instance_that_has_room_for_all_of_it(method: RoutingMethod) -> None:
    """Its trajectories share the prompt's KV cache there, and one generate call."""
    fleet = Fleet()
    fleet.report(report("rollout-0", max_num_seqs=16, running=9), 0)
    fleet.report(report("rollout-1", max_num_seqs=16, running=8), 0)
    fleet.report(report("rollout-2", max_num_seqs=8, running=6), 0)
    assert on_each(fleet.place(ask(8, method=method), 0)) == {"rollout-1": 8}


def test_groups_take_the_least_loaded_instance_in_turn() -> None:
    fleet = Fleet()
    for name in ("rollout-0", "rollout-1"):
        fleet.report(report(name, max_num_seqs=16), 0)
    assert [on_each(fleet.place(ask(4), 0)) for _ in range(3)] == [{"rollout-0": 4}, {"rollout-1": 4}, {"rollout-0": 4}]


def test_continuations_leave_round_robin_where_it_is() -> None:
    """Else an instance that keeps its trajectories would hand every group to the one after it."""
    fleet = Fleet()
    for name in ("rollout-0", "rollout-1", "rollout-2"):
        fleet.report(report(name, max_num_seqs=64), 0)
    groups = []
    for _ in range(3):
        groups.append(fleet.place(ask(1, method=RoutingMethod.ROUND_ROBIN), 0).placements[0].instance)
        kept = ask(1, method=RoutingMethod.ROUND_ROBIN).model_copy(update={"prefer": "rollout-0"})
        assert fleet.place(kept, 0).placements[0].instance == "rollout-0"
    assert groups == ["rollout-0", "rollout-1", "rollout-2"]


def test_a_group_that_no_instance_has_room_for_is_shared_out_before_any_of_it_queues() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", max_num_seqs=16, running=13), 0)
    fleet.report(report("rollout-1", max_num_seqs=16, running=11), 0)
    result = fleet.place(ask(8), 0)
    assert on_each(result) == {"rollout-0": 3, "rollout-1": 5}
    assert result.reason == ""


def test_an_instance_older_than_the_tag_is_no_candidate() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", version=3), 0)
    fleet.report(report("rollout-1", version=5), 0)
    result = fleet.place(ask(3, tag=4), 0)
    assert {(placement.instance, placement.version) for placement in result.placements} == {("rollout-1", 5)}


def test_partial_placements_say_why_the_rest_found_no_room() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", version=4, state=InstanceState.PULLING), 0)
    fleet.report(report("rollout-1", version=4, running=2), 0)
    result = fleet.place(ask(4), 0)
    assert [placement.index for placement in result.placements] == [0, 1]
    assert result.reason == "2 instances: rollout-0 pulling (v4), rollout-1 full 4/4"


def test_no_group_starts_for_an_instance_that_would_get_none_of_its_requests() -> None:
    """It would only ask for room, every few seconds, while its tag grows old."""
    fleet = Fleet()
    fleet.report(report("rollout-0", version=3, max_num_seqs=64, running=9, engine_waiting=1), 0)
    refused = fleet.plan(plan(4), 0)
    assert refused.rooms == ()
    assert refused.reason == "1 instance: rollout-0 v3, 1 wait for KV cache"
    admitted = fleet.plan(plan(4, admission_reject_on_waiting=False), 0)
    assert [(room.version, room.groups) for room in admitted.rooms] == [(3, 15)]


def test_an_empty_fleet_says_so() -> None:
    assert Fleet().place(ask(1), 0).reason == "no instance of run run has reported in the last 5 s"


def test_instances_of_another_run_get_nothing() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", run_id="other"), 0)
    assert fleet.place(ask(1), 0).placements == ()


def test_a_silent_instance_is_forgotten_until_it_reports_again() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0"), 0)
    assert fleet.place(ask(1), SILENCE_S + 0.1).placements == ()
    fleet.report(report("rollout-0"), SILENCE_S + 0.2)
    assert len(fleet.place(ask(1), SILENCE_S + 0.3).placements) == 1


def test_a_received_placement_is_counted_once_not_twice() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0"), 0)
    fleet.place(ask(3), 0)
    fleet.report(report("rollout-0", running=2, received=2), 1)
    assert fleet.snapshot(1).instances[0].load == 3


def test_a_placement_that_never_arrives_decays() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0"), 0)
    fleet.place(ask(4), 0)
    fleet.report(report("rollout-0"), DECAY_S - 0.1)
    assert fleet.snapshot(DECAY_S - 0.1).instances[0].load == 4
    assert fleet.snapshot(DECAY_S).instances[0].load == 0


def test_a_restarted_host_counts_from_zero() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", received=100), 0)
    fleet.place(ask(2), 0)
    fleet.report(report("rollout-0", received=2, running=2, pid=2), 1)
    assert fleet.snapshot(1).instances[0].load == 2


def test_a_restarted_coordinator_is_whole_after_one_report_each() -> None:
    fleet = Fleet()
    for name in ("rollout-0", "rollout-1"):
        fleet.report(report(name, running=3, received=50), 0)
    assert [instance.load for instance in fleet.snapshot(0).instances] == [3, 3]
    assert len(fleet.place(ask(8), 0).placements) == 2


def test_the_plan_gives_room_in_groups_per_version_newest_first() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", version=4, max_num_seqs=16, running=5), 0)
    fleet.report(report("rollout-1", version=5, max_num_seqs=16, running=3), 0)
    fleet.report(report("rollout-2", version=5, max_num_seqs=16, running=17), 0)
    rooms = fleet.plan(plan(4), 0).rooms
    assert [(room.version, room.groups) for room in rooms] == [(5, 4), (4, 3)]


def test_an_instance_queues_an_eighth_of_its_slots_when_no_other_has_a_free_one() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", max_num_seqs=16, running=16), 0)
    fleet.report(report("rollout-1", max_num_seqs=16, running=14), 0)
    placed = [placement.instance for placement in fleet.place(ask(8), 0).placements]
    assert placed[:2] == ["rollout-1", "rollout-1"]
    assert Counter(placed) == {"rollout-0": 2, "rollout-1": 4}


@pytest.mark.parametrize("method", RoutingMethod)
def test_no_policy_queues_while_a_slot_is_free(method: RoutingMethod) -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", max_num_seqs=16, running=16), 0)
    fleet.report(report("rollout-1", max_num_seqs=16), 0)
    placed = fleet.place(ask(16, method=method), 0).placements
    assert {placement.instance for placement in placed} == {"rollout-1"}


def test_an_idle_instance_takes_one_group_even_if_it_is_larger_than_the_instance() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0"), 0)
    assert [(room.version, room.groups) for room in fleet.plan(plan(16), 0).rooms] == [(0, 1)]


def test_a_plan_without_room_says_why() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", version=2, running=4), 0)
    answer = fleet.plan(plan(4), 0)
    assert answer.rooms == ()
    assert answer.reason == "1 instance: rollout-0 full 4/4"


def test_a_group_that_sticks_to_an_instance_waits_for_room_there() -> None:
    fleet = Fleet()
    for name in ("rollout-0", "rollout-1"):
        fleet.report(report(name), 0)
    request = with_strategy(ask(1), enable_group_sticky=True)
    assert on_each(fleet.place(request, 0)) == {"rollout-0": 1}
    fleet.report(report("rollout-0", running=4, received=1), 0)
    result = fleet.place(request, 0)
    assert result.placements == ()
    assert result.reason == (
        "the group waits for rollout-0 (enable_group_sticky); 2 instances: rollout-0 full 4/4, rollout-1 v0, 0/4"
    )
    fleet.report(report("rollout-0", state=InstanceState.PULLING, received=1), 0)
    assert on_each(fleet.place(request, 0)) == {"rollout-1": 1}


def test_what_was_placed_counts_as_kv_tokens_until_it_is_reported() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", kv_tokens=50, kv_capacity_tokens=100, running=1), 0)
    request = with_strategy(
        ask(2), method=RoutingMethod.THROUGHPUT_OPTIMAL, cost_model_path="c", delta_throughput_threshold=0
    ).model_copy(update={"tokens": (30, 30)})
    result = fleet.place(request, 0)
    assert [placement.index for placement in result.placements] == [0]
    assert result.reason == (
        "throughput_optimal waits for an instance that it would give enough throughput; 1 instance: rollout-0 v0, 2/4"
    )
    fleet.report(report("rollout-0", kv_tokens=60, kv_capacity_tokens=100, running=2, received=1), 0)
    assert len(fleet.place(request, 0).placements) == 1


def test_with_a_budget_every_response_counts_as_a_whole_number_of_it() -> None:
    fleet = Fleet()
    lengths = {"requests": ("a", "b"), "prompt_tokens": (10, 10), "generated_tokens": (5, 64)}
    fleet.report(report("rollout-0", kv_tokens=89, kv_capacity_tokens=290, running=2, **lengths), 0)
    request = with_strategy(
        ask(1),
        method=RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET,
        cost_model_path="c",
        delta_throughput_threshold=0,
        request_budget=64,
    )
    fits, not_so = {"tokens": (14,), "sampled": (0,)}, {"tokens": (15,), "sampled": (0,)}
    assert fleet.place(request.model_copy(update=not_so), 0).placements == ()
    assert len(fleet.place(request.model_copy(update=fits), 0).placements) == 1


def test_a_prefix_is_followed_until_its_instance_serves_another_version() -> None:
    fleet = Fleet()
    for name in ("rollout-0", "rollout-1"):
        fleet.report(report(name, max_num_seqs=16), 0)
    request = with_strategy(ask(1), method=RoutingMethod.CACHE_AWARE)
    there = request.model_copy(update={"tokens": (40,), "blocks": (1, 2)})
    other = request.model_copy(update={"tokens": (40,), "blocks": (5,)})
    assert on_each(fleet.place(there, 0)) == {"rollout-0": 1}
    assert on_each(fleet.place(other, 0)) == {"rollout-1": 1}
    assert on_each(fleet.place(there, 0)) == {"rollout-0": 1}
    fleet.report(report("rollout-0", max_num_seqs=16, version=1, running=2, received=2), 0)
    fleet.report(report("rollout-1", max_num_seqs=16, version=1, running=1, received=1), 0)
    assert on_each(fleet.place(there, 0)) == {"rollout-1": 1}


def test_an_instance_in_which_requests_wait_for_kv_cache_says_so() -> None:
    fleet = Fleet()
    fleet.report(report("rollout-0", running=2, engine_waiting=1), 0)
    assert fleet.place(ask(1), 0).reason == "1 instance: rollout-0 v0, 1 wait for KV cache"
    assert len(fleet.place(with_strategy(ask(1), admission_reject_on_waiting=False), 0).placements) == 1


EVENTS = st.one_of(
    st.builds(
        lambda *facts: ("report", *facts),
        st.sampled_from(["rollout-0", "rollout-1", "rollout-2"]),
        st.integers(0, 4),
        st.sampled_from(list(InstanceState)),
        st.integers(0, 6),
        st.integers(0, 20),
        st.integers(1, 2),
        st.sampled_from([4, 8]),
    ),
    st.builds(
        lambda count, tag, strategy, tokens, blocks: ("route", count, tag, strategy, tokens, blocks),
        st.integers(1, 8),
        st.integers(0, 4),
        st.builds(
            RoutingStrategy,
            method=st.sampled_from(RoutingMethod),
            cost_model_path=st.just("cost.json"),
            delta_throughput_threshold=st.sampled_from([0, 0.5, 1]),
            candidate_sort_indicator=st.sampled_from(CandidateOrder),
            enable_group_sticky=st.booleans(),
            admission_reject_on_waiting=st.booleans(),
        ),
        st.integers(1, 60),
        st.integers(0, 3),
    ),
    st.builds(lambda seconds: ("wait", seconds), st.floats(0, 7)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=40))
def test_no_placement_is_older_than_its_tag_or_above_capacity(events: list[tuple[object, ...]]) -> None:
    fleet, now, known = Fleet(), 0.0, {}
    for event in events:
        match event:
            case ("report", str() as name, version, state, running, received, pid, slots):
                counts = {"running": running, "received": received, "max_num_seqs": slots, "kv_capacity_tokens": 100}
                known[name] = report(name, version=version, state=state, pid=pid, **counts)
                fleet.report(known[name], now)
            case (
                "route",
                int() as count,
                int() as tag,
                RoutingStrategy() as strategy,
                int() as tokens,
                int() as blocks,
            ):
                before = {item.report.instance: item.load for item in fleet.snapshot(now).instances}
                told = {"strategy": strategy, "tokens": (tokens,) * count, "blocks": tuple(range(blocks))}
                result = fleet.place(ask(count, tag).model_copy(update=told), now)
                added = Counter(placement.instance for placement in result.placements)
                for placement in result.placements:
                    there = known[placement.instance]
                    assert there.state is InstanceState.SERVING
                    assert placement.version == there.version >= tag
                for name, more in added.items():
                    assert before[name] + more <= known[name].max_num_seqs * 9 // 8
                assert bool(result.reason) == (len(result.placements) < count)
            case ("wait", float() as seconds):
                now += seconds
