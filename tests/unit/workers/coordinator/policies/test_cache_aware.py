"""Routing by cached prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.activities.routing.prefix import prefix_blocks
from psrl.schemas.config import RoutingStrategy
from psrl.schemas.config.routing import CacheAwarePolicy
from psrl.schemas.ids import InstanceId
from psrl.workers.coordinator.policies.routing.cache_aware import cache_aware
from psrl.workers.coordinator.policies.routing.cache_aware_v1 import cache_aware_v1
from psrl.workers.coordinator.policies.routing.contract import Candidate, RoutingSnapshot
from psrl.workers.coordinator.prefixes import Prefixes

A, B, C = InstanceId("a"), InstanceId("b"), InstanceId("c")
IDS = st.lists(st.integers(0, 3), max_size=40)


def snapshot(
    *candidates: Candidate, overlap: dict[InstanceId, int] | None = None, **settings: float
) -> RoutingSnapshot:
    strategy = RoutingStrategy(cache_aware_policy=CacheAwarePolicy(**settings))  # type: ignore[arg-type]
    return RoutingSnapshot(candidates, None, 0.0, tokens=100, need=100, overlap=overlap or {}, strategy=strategy)


def loads(a: int, b: int, c: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(name, 0, load, 64) for name, load in ((A, a), (B, b), (C, c)))


def test_the_longest_prefix_is_chosen_though_another_has_fewer_requests() -> None:
    assert cache_aware(snapshot(*loads(9, 0, 9), overlap={A: 32, C: 48})).instance == C


def test_of_equal_prefixes_the_least_loaded_is_chosen() -> None:
    assert cache_aware(snapshot(*loads(9, 0, 5), overlap={A: 48, C: 48})).instance == C


def test_a_prefix_must_be_more_than_the_threshold() -> None:
    assert cache_aware(snapshot(*loads(9, 1, 2), overlap={A: 50}, cache_threshold=0.5)).instance == B
    assert cache_aware(snapshot(*loads(9, 1, 2), overlap={A: 51}, cache_threshold=0.5)).instance == A
    assert cache_aware(snapshot(*loads(9, 1, 2))).instance == B


@pytest.mark.parametrize(("most", "chosen"), [(26, A), (27, B)])
def test_loads_that_differ_by_too_much_are_evened_out_first(most: int, chosen: InstanceId) -> None:
    """More than 16 apart, and more than one and a half times the smallest."""
    assert cache_aware(snapshot(*loads(most, 10, 12), overlap={A: 96})).instance == chosen


def test_kv_use_counts_as_imbalance_where_its_threshold_is_below_one() -> None:
    full = (
        Candidate(A, 0, 5, 64, kv_tokens=90, kv_capacity=100),
        Candidate(B, 0, 4, 64, kv_tokens=10, kv_capacity=100),
    )
    assert cache_aware(snapshot(*full, overlap={A: 96})).instance == B
    assert cache_aware(snapshot(*full, overlap={A: 96}, balance_token_usage_threshold=1)).instance == A
    over = {"balance_token_usage_threshold": 1, "overload_token_usage_threshold": 0.85}
    assert cache_aware(snapshot(*full, overlap={A: 96}, **over)).instance == B


def test_v1_takes_only_an_instance_whose_cache_has_room_for_what_it_does_not_have() -> None:
    full = (
        Candidate(A, 0, 5, 64, kv_tokens=50, kv_capacity=100),
        Candidate(B, 0, 4, 64, kv_tokens=10, kv_capacity=100),
    )
    for shared, chosen in ((48, None), (50, A)):
        taken = cache_aware_v1(snapshot(*full, overlap={A: shared}, kv_capacity_threshold=1))
        assert (taken and taken.instance) == chosen
    waiting = Candidate(A, 0, 5, 64, waiting=1)
    assert cache_aware_v1(snapshot(waiting)) is None


@given(IDS, IDS, st.integers(1, 5))
def test_blocks_are_equal_exactly_where_all_tokens_up_to_their_end_are(
    one: list[int], other: list[int], size: int
) -> None:
    first, second = prefix_blocks(one, size), prefix_blocks(other, size)
    assert len(first) == len(one) // size
    for count in range(min(len(first), len(second))):
        assert (first[count] == second[count]) == (one[: (count + 1) * size] == other[: (count + 1) * size])


@given(st.lists(IDS, max_size=6), IDS, st.integers(1, 5))
def test_the_tree_shares_the_longest_prefix_of_anything_it_was_given(
    given_ids: list[list[int]], asked: list[int], size: int
) -> None:
    tree = Prefixes()
    for ids in given_ids:
        tree.add(prefix_blocks(ids, size), most=1000)

    def common(ids: list[int]) -> int:
        same = [one == other for one, other in zip(ids, asked, strict=False)]
        return (same.index(False) if False in same else len(same)) // size

    assert tree.shared(prefix_blocks(asked, size)) == max(map(common, given_ids), default=0)


@given(st.lists(IDS, min_size=1, max_size=8), st.integers(0, 12))
def test_the_tree_keeps_within_its_size_and_loses_ends_before_beginnings(given_ids: list[list[int]], most: int) -> None:
    tree = Prefixes()
    for ids in given_ids:
        tree.add(prefix_blocks(ids, 2), most)
        assert len(tree) <= most
    newest = prefix_blocks(given_ids[-1], 2)
    assert tree.shared(newest) == min(most, len(newest))
