"""What holds of a migration whatever the fleet looks like, and the cases that PSRL's documentation describes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config.sync_and_mig import LoadIndicator
from psrl.schemas.config.sync_and_mig import Migration as MigrationKeys
from psrl.workers.coordinator.policies.load import INDICATORS, InstanceLoad
from psrl.workers.coordinator.policies.migration.balance import Balance
from psrl.workers.coordinator.policies.migration.contract import Migration, MigrationSnapshot
from psrl.workers.coordinator.policies.migration.registry import migration_policy
from tests.support.loads import load, loads

POLICIES = st.builds(
    Balance,
    indicator=st.sampled_from(LoadIndicator),
    threshold=st.floats(1, 5),
    stop_indicator=st.sampled_from(LoadIndicator),
    stop_threshold=st.floats(0, 10),
)
BY_REQUESTS = Balance(LoadIndicator.REQUEST_NUM, threshold=2)


def without(donor: InstanceLoad, gone: Sequence[str]) -> InstanceLoad:
    left = [one for one in donor.requests if one.request_id not in gone]
    return replace(
        donor,
        requests=left,
        running=min(len(left), donor.slots),
        waiting=max(0, len(left) - donor.slots),
        kv_usage=sum(one.tokens for one in left) / donor.kv_capacity,
    )


@given(policy=POLICIES, fleet=loads(), queued=st.lists(st.integers(0, 3), max_size=3))
def test_it_names_running_requests_of_a_busy_instance_that_a_starved_one_has_room_for(
    policy: Balance, fleet: list[InstanceLoad], queued: list[int]
) -> None:
    found = policy(MigrationSnapshot(fleet, queued))
    if found is None:
        return
    named = {one.instance: one for one in fleet}
    donor, receiver = named[found.donor], named[found.receiver]
    assert 0 < len(found.requests) == len(set(found.requests)) <= receiver.free
    assert set(found.requests) <= {one.request_id for one in donor.requests}
    assert donor.serving
    assert receiver.serving
    assert receiver.version >= donor.version, "no request continues under older weights (L1)"
    assert not receiver.waiting
    assert not any(tag <= receiver.version for tag in queued)
    value = INDICATORS[policy.indicator]
    assert value(donor) > policy.threshold * value(receiver)
    assert INDICATORS[policy.stop_indicator](donor) >= policy.stop_threshold


@given(fleet=loads(), queued=st.lists(st.integers(0, 3), max_size=3), ratio=st.floats(1, 3))
def test_by_requests_it_moves_no_more_than_balance_needs(
    fleet: list[InstanceLoad], queued: list[int], ratio: float
) -> None:
    found = Balance(LoadIndicator.REQUEST_NUM, ratio)(MigrationSnapshot(fleet, queued))
    if found is None:
        return
    named = {one.instance: one for one in fleet}
    donor, receiver = named[found.donor], named[found.receiver]
    assert receiver.running + len(found.requests) <= max(donor.running, receiver.running + 1)
    waiting = max(0, len(donor.requests) - donor.slots)
    from_slots = max(0, len(found.requests) - waiting)
    assert receiver.running + len(found.requests) <= donor.running - from_slots


@given(policy=POLICIES, fleet=loads(), queued=st.lists(st.integers(0, 3), max_size=3))
def test_it_comes_to_rest(policy: Balance, fleet: list[InstanceLoad], queued: list[int]) -> None:
    """Carried out again and again, with the requests where room was expected, it ends."""
    for _ in range(sum(len(one.requests) for one in fleet) + 1):
        found = policy(MigrationSnapshot(fleet, queued))
        if found is None:
            return
        fleet = [moved(one, found, fleet) for one in fleet]
    if policy.indicator is not LoadIndicator.THROUGHPUT:  # which a host measures anew, and this test does not
        raise AssertionError("requests are moved for ever")


def moved(one: InstanceLoad, found: Migration, fleet: list[InstanceLoad]) -> InstanceLoad:
    if one.instance == found.donor:
        return without(one, found.requests)
    if one.instance != found.receiver:
        return one
    donor = next(other for other in fleet if other.instance == found.donor)
    more = [request for request in donor.requests if request.request_id in found.requests]
    requests = [*one.requests, *more]
    return replace(
        one,
        requests=requests,
        running=len(requests),
        kv_usage=sum(request.tokens for request in requests) / one.kv_capacity,
    )


def test_half_of_the_difference_moves_and_not_all_of_the_donors() -> None:
    found = BY_REQUESTS(MigrationSnapshot([load(0, 50), load(1, 0)]))
    assert found is not None
    assert (found.donor, found.receiver, len(found.requests)) == ("rollout-0", "rollout-1", 25)
    assert found.reason == "request_num 50 against 0"


def test_the_shortest_move_since_their_prefill_is_the_price() -> None:
    donor = load(0, 4)
    long = [replace(one, sampled=length) for one, length in zip(donor.requests, (900, 20, 700, 10), strict=True)]
    found = BY_REQUESTS(MigrationSnapshot([replace(donor, requests=long), load(1, 0)]))
    assert found is not None
    assert list(found.requests) == ["rollout-0-3", "rollout-0-1"]


def test_what_waits_for_a_slot_moves_first() -> None:
    donor = load(0, 6, slots=4)
    found = BY_REQUESTS(MigrationSnapshot([donor, load(1, 1)]))
    assert found is not None
    assert list(found.requests) == ["rollout-0-4", "rollout-0-5"]


@pytest.mark.parametrize(
    "fleet",
    [
        [load(0, 4), load(1, 2)],  # not above the ratio
        [load(0, 0), load(1, 0)],
        [load(0, 9, version=2), load(1, 0, version=1)],
        [load(0, 9), load(1, 0, serving=False)],
        [load(0, 9, serving=False), load(1, 0)],
        [load(0, 9), load(1, 1, waiting=1)],
        [load(0, 9)],
        [load(0, 1), load(1, 0)],  # moving it would only turn them round
    ],
)
def test_nothing_moves(fleet: list[InstanceLoad]) -> None:
    assert BY_REQUESTS(MigrationSnapshot(fleet)) is None


def test_nothing_moves_to_an_instance_that_the_queue_will_fill() -> None:
    fleet = [load(0, 9), load(1, 0)]
    assert BY_REQUESTS(MigrationSnapshot(fleet, queued=[0])) is None
    assert BY_REQUESTS(MigrationSnapshot(fleet, queued=[1])) is not None


def test_a_donor_keeps_what_the_stop_threshold_says() -> None:
    policy = Balance(LoadIndicator.REQUEST_NUM, 2, LoadIndicator.REQUEST_NUM, 8)
    found = policy(MigrationSnapshot([load(0, 10), load(1, 0)]))
    assert found is not None
    assert len(found.requests) == 3, "at 8 it gives one more, and is below"
    assert policy(MigrationSnapshot([load(0, 7), load(1, 0)])) is None


def test_by_kv_cache_tokens_are_evened_out() -> None:
    donor = load(0, 4, tokens=10_000)
    found = Balance(LoadIndicator.KV_CACHE, 2)(MigrationSnapshot([donor, load(1, 0)]))
    assert found is not None
    assert len(found.requests) == 2


def test_the_keys_name_the_policy() -> None:
    assert migration_policy(MigrationKeys()) is None
    chosen = migration_policy(MigrationKeys(enable=True, threshold=3, stop_threshold=2))
    assert chosen == Balance(LoadIndicator.REQUEST_NUM, 3, LoadIndicator.REQUEST_NUM, 2)
