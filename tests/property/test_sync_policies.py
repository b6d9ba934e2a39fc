"""When an instance syncs, by each policy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config.sync_and_mig import (
    LoadIndicator,
    SyncAndMigStrategy,
    SyncIndicator,
    SyncMethod,
    SyncMode,
    SyncStrategy,
)
from psrl.workers.coordinator.policies.load import InstanceLoad
from psrl.workers.coordinator.policies.sync.contract import SyncPolicy, SyncSnapshot, SyncVerdict
from psrl.workers.coordinator.policies.sync.hypothesis_test import hypothesis_test
from psrl.workers.coordinator.policies.sync.needed import needed
from psrl.workers.coordinator.policies.sync.registry import sync_policy
from psrl.workers.coordinator.policies.sync.status_based import StatusBased
from tests.support.loads import load, loads


def keys(indicator: SyncIndicator) -> st.SearchStrategy[SyncStrategy]:
    """Use of a KV cache is a share; the others have no limit."""
    threshold = st.floats(0, 1 if indicator is SyncIndicator.KV_CACHE else 5)
    return st.builds(
        SyncStrategy, indicator=st.just(indicator), threshold=threshold, check_req_before_sync=st.booleans()
    )


STRATEGIES = st.builds(
    SyncAndMigStrategy, method=st.sampled_from(SyncMethod), sync=st.sampled_from(SyncIndicator).flatmap(keys)
)


@st.composite
def snapshots(draw: st.DrawFn) -> SyncSnapshot:
    fleet = draw(loads())
    fleet[0] = replace(fleet[0], serving=True, version=draw(st.integers(0, 3)))
    return SyncSnapshot(
        instance=fleet[0].instance,
        target=4,
        instances={one.instance: one for one in fleet},
        mode=draw(st.sampled_from(SyncMode)),
        queued=draw(st.lists(st.integers(0, 5), max_size=4)),
        admits=draw(st.dictionaries(st.integers(0, 4), st.integers(0, 6), max_size=4)),
    )


def snapshot(*fleet: InstanceLoad, asks: int = 0, target: int = 1, **more: Any) -> SyncSnapshot:
    return SyncSnapshot(fleet[asks].instance, target, {one.instance: one for one in fleet}, **more)


def due(policy: SyncPolicy, *fleet: InstanceLoad, **more: Any) -> bool:
    return policy(snapshot(*fleet, **more)).due


# --- what holds of all -----------------------------------------------------------------------------------------------


@given(strategy=STRATEGIES, seen=snapshots())
def test_a_verdict_says_why_and_is_the_same_for_the_same_snapshot(
    strategy: SyncAndMigStrategy, seen: SyncSnapshot
) -> None:
    verdict = sync_policy(strategy)(seen)
    assert isinstance(verdict, SyncVerdict)
    assert verdict.reason
    assert sync_policy(strategy)(seen) == verdict


@given(strategy=STRATEGIES, seen=snapshots())
def test_an_instance_with_nothing_to_do_syncs(strategy: SyncAndMigStrategy, seen: SyncSnapshot) -> None:
    """Unless work is waiting that it may do as it is."""
    idle = replace(seen.own, running=0, waiting=0, requests=(), kv_usage=0.0)
    alone = replace(seen, instances={**seen.instances, seen.instance: idle}, queued=(), admits={})
    assert sync_policy(strategy)(alone).due


@given(strategy=STRATEGIES, seen=snapshots())
def test_a_run_whose_work_nobody_may_do_gets_an_instance_that_may(
    strategy: SyncAndMigStrategy, seen: SyncSnapshot
) -> None:
    """Whatever the policy, one of the serving ones syncs, if no other is on its way."""
    fleet = {name: replace(one, serving=True, version=min(one.version, 3)) for name, one in seen.instances.items()}
    for stuck in (replace(seen, instances=fleet, queued=[4]), replace(seen, instances=fleet, admits={4: 1}, queued=())):
        verdicts = [sync_policy(strategy)(replace(stuck, instance=name)).due for name in fleet]
        assert any(verdicts)


@given(seen=snapshots())
def test_of_those_that_could_only_one_is_needed(seen: SyncSnapshot) -> None:
    assert sum(bool(needed(replace(seen, instance=name))) for name in seen.instances) <= 1


@given(seen=snapshots())
def test_none_is_needed_while_another_is_on_its_way(seen: SyncSnapshot) -> None:
    """It will serve the newest version, which serves every tag that a run has given."""
    coming = {**seen.instances, "rollout-9": load(9, serving=False)}
    admitted = {**seen.admits, seen.target: 1}
    assert not needed(replace(seen, instances=coming, admits=admitted))


@given(snapshots())
def test_an_instance_that_is_lost_makes_no_sync_superfluous(seen: SyncSnapshot) -> None:
    """Its engine may be tried anew for hours, and the run would stand still for `max_wait_s` each time."""
    lost = {**seen.instances, "rollout-9": load(9, serving=False, lost=True)}
    assert needed(replace(seen, instances=lost)) == needed(seen)


# --- status_based ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indicator", "threshold", "running"),
    [(LoadIndicator.REQUEST_NUM, 2, 2), (LoadIndicator.THROUGHPUT, 25, 2), (LoadIndicator.KV_CACHE, 0.0025, 2)],
)
def test_each_indicator_is_compared_with_the_threshold(
    indicator: LoadIndicator, threshold: float, running: int
) -> None:
    policy = StatusBased(indicator, threshold)
    assert due(policy, load(0, running))
    assert not due(policy, load(0, running + 1))


def test_a_rate_of_the_second_before_is_none_of_an_idle_instance() -> None:
    assert due(StatusBased(LoadIndicator.THROUGHPUT, 0), load(0, 0, throughput=40.0))


def test_what_waits_in_the_engine_keeps_it_from_a_sync() -> None:
    verdict = StatusBased(LoadIndicator.REQUEST_NUM, 9)(snapshot(load(0, 2, waiting=1)))
    assert verdict == SyncVerdict(False, "1 requests wait in its engine or are on their way there")


def test_a_trajectory_that_it_may_serve_as_it_is_keeps_it_from_a_sync_unless_that_is_off() -> None:
    fleet = [load(0, 2, version=3)]
    policy = StatusBased(LoadIndicator.REQUEST_NUM, 9)
    assert not due(policy, *fleet, target=4, queued=[3])
    assert due(replace(policy, check_req_before_sync=False), *fleet, target=4, queued=[3])
    assert due(policy, *fleet, target=5, queued=[4])


# --- hypothesis_test -------------------------------------------------------------------------------------------------


def judged(*fleet: InstanceLoad, admits: Mapping[int, int], **more: Any) -> bool:
    return due(hypothesis_test, *fleet, admits=admits, **more)


def test_a_few_long_requests_with_empty_slots_and_no_other_work_are_worth_a_sync() -> None:
    assert judged(load(0, 2, tokens=4000), admits={1: 64})


def test_so_are_they_not_while_new_work_is_admitted_at_the_version_served() -> None:
    assert not judged(load(0, 2, tokens=4000), admits={0: 64, 1: 64})


def test_nor_without_new_work_after_the_sync() -> None:
    assert not judged(load(0, 2, tokens=4000), admits={})


def test_nor_when_they_will_soon_be_over() -> None:
    assert not judged(load(0, 2, tokens=3, pull_s=1.0), admits={1: 64})


def test_nor_when_the_slots_are_full_anyhow() -> None:
    assert not judged(load(0, 64, tokens=4000, pull_s=1.0), admits={1: 64})


@given(tokens=st.integers(1, 5000), running=st.integers(1, 63), pull_s=st.floats(0, 60))
def test_a_slower_pull_never_makes_a_sync_better_and_keeping_the_requests_never_worse(
    tokens: int, running: int, pull_s: float
) -> None:
    admits = {1: 64}
    slow = judged(load(0, running, tokens, pull_s=pull_s + 1), admits=admits)
    fast = judged(load(0, running, tokens, pull_s=pull_s), admits=admits)
    kept = judged(load(0, running, tokens, pull_s=pull_s), admits=admits, mode=SyncMode.IN_PLACE)
    assert slow <= fast <= kept


def test_a_drain_begins_when_no_new_work_is_admitted() -> None:
    assert judged(load(0, 60), admits={1: 9}, mode=SyncMode.DRAIN)
    assert not judged(load(0, 1), admits={0: 1, 1: 9}, mode=SyncMode.DRAIN)


def test_without_a_cost_model_nothing_is_estimated() -> None:
    assert not judged(load(0, 2, cost=None), admits={1: 64})


# --- what cannot wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queued", "admits", "expected"),
    [
        ([1], {}, "trajectories wait for a version newer than v0, which nobody serves, and it is the least busy"),
        ([], {1: 4}, "the ledger admits new groups at no version that is served, and it is the least busy"),
        ([0], {0: 2, 1: 4}, ""),
        ([2], {}, ""),  # of a version that this sync would not bring either
        ([], {0: 0}, ""),
    ],
)
def test_why_a_sync_is_needed(queued: Sequence[int], admits: Mapping[int, int], expected: str) -> None:
    fleet = [load(0, 3), load(1, 2), load(2, 9)]
    assert needed(snapshot(*fleet, asks=1, queued=queued, admits=admits)) == expected
    assert not needed(snapshot(*fleet, asks=0, queued=queued, admits=admits))
