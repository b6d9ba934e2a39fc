"""Routing policies, as pure functions of what they are shown."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config import RoutingMethod, RoutingStrategy
from psrl.schemas.cost_model import CostModel
from psrl.schemas.ids import InstanceId
from psrl.workers.coordinator.policies.routing.contract import Candidate, RoutingSnapshot
from psrl.workers.coordinator.policies.routing.registry import ROUTING, WAITS_FOR

CHANCE = st.floats(0, 1, exclude_max=True)
COSTS = [
    CostModel(other_threshold=a, other_latency_b=0.0, other_latency_k=b, attn_latency_b=0.0, attn_latency_k=c)
    for a, b, c in ((0.01, 1e-4, 1e-7), (0.03, 1e-3, 1e-6))
]
NAMES = [InstanceId(f"rollout-{number}") for number in range(6)]


@st.composite
def snapshots(draw: st.DrawFn) -> RoutingSnapshot:
    there = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(sorted))
    candidates = [
        Candidate(
            name,
            draw(st.integers(0, 3)),
            draw(st.integers(0, 9)),
            8,
            waiting=draw(st.sampled_from([0, 0, 3])),
            kv_tokens=draw(st.integers(0, 2000)),
            kv_capacity=1000,
            cost=draw(st.none() | st.sampled_from(COSTS)),
        )
        for name in there
    ]
    tokens = draw(st.integers(1, 1000))
    overlap = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, tokens)))
    last = draw(st.none() | st.sampled_from(NAMES))
    strategy = RoutingStrategy(delta_throughput_threshold=draw(st.floats(0, 1)))
    return RoutingSnapshot(
        candidates, last, draw(CHANCE), tokens=tokens, need=tokens, overlap=overlap, strategy=strategy
    )


def test_every_routing_method_has_its_policy() -> None:
    assert set(ROUTING) == set(RoutingMethod)


@pytest.mark.parametrize("method", RoutingMethod)
@given(snapshots())
def test_a_policy_chooses_a_candidate_and_the_same_one_when_asked_again(
    method: RoutingMethod, snapshot: RoutingSnapshot
) -> None:
    chosen = ROUTING[method](snapshot)
    assert chosen in snapshot.candidates or (chosen is None and method in WAITS_FOR)
    assert ROUTING[method](snapshot) == chosen


@given(snapshots())
def test_request_num_balance_chooses_no_instance_while_another_has_fewer_requests(snapshot: RoutingSnapshot) -> None:
    chosen = ROUTING[RoutingMethod.REQUEST_NUM_BALANCE](snapshot)
    assert chosen is not None
    assert chosen.load == min(candidate.load for candidate in snapshot.candidates)


@given(snapshots())
def test_round_robin_comes_to_every_candidate_before_it_comes_to_one_again(snapshot: RoutingSnapshot) -> None:
    last, chosen = snapshot.last, []
    for _ in snapshot.candidates:
        last = ROUTING[RoutingMethod.ROUND_ROBIN](RoutingSnapshot(snapshot.candidates, last, 0.0)).instance
        chosen.append(last)
    assert sorted(chosen) == [candidate.instance for candidate in snapshot.candidates]


def test_round_robin_goes_on_though_the_one_it_chose_has_left() -> None:
    a, b, c = (Candidate(InstanceId(name), 0, 0, 8) for name in "abc")
    turn = ROUTING[RoutingMethod.ROUND_ROBIN]
    assert turn(RoutingSnapshot([a, c], b.instance, 0.0)) == c
    assert turn(RoutingSnapshot([a, b], c.instance, 0.0)) == a


def test_random_gives_every_candidate_an_equal_part_of_chance() -> None:
    candidates = [Candidate(name, 0, 0, 8) for name in NAMES[:4]]
    asked = [RoutingSnapshot(candidates, None, number / 100) for number in range(100)]
    chosen = [ROUTING[RoutingMethod.RANDOM](snapshot) for snapshot in asked]
    assert Counter(chosen) == dict.fromkeys(candidates, 25)
    assert all(one.instance <= other.instance for one, other in pairwise(chosen))
