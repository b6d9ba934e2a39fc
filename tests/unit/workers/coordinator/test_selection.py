"""The stages before a policy."""

from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config import CandidateOrder, RoutingStrategy
from psrl.schemas.ids import InstanceId
from psrl.workers.coordinator.policies.routing.contract import QUEUE_SHARE, Candidate
from psrl.workers.coordinator.selection import Tiers, select

NAMES = [InstanceId(f"rollout-{number}") for number in range(5)]
PLAIN = RoutingStrategy()
ONE_TIER = RoutingStrategy(candidate_sort_indicator=CandidateOrder.RESERVE_CAPABILITY)
LENIENT = RoutingStrategy(admission_reject_on_waiting=False)


def names(tiers: Tiers) -> list[list[str]]:
    return [[one.instance for one in tier] for tier in tiers]


def test_the_oldest_version_that_is_new_enough_comes_first_and_those_of_one_version_together() -> None:
    fleet = [Candidate(name, version, 0, 8) for name, version in zip(NAMES, (4, 2, 3, 2, 1), strict=True)]
    assert names(select(fleet, 2, PLAIN)) == [["rollout-1", "rollout-3"], ["rollout-2"], ["rollout-0"]]
    assert names(select(fleet, 2, ONE_TIER)) == [["rollout-0", "rollout-1", "rollout-2", "rollout-3"]]


def test_an_instance_whose_engine_lets_requests_wait_is_left_out_unless_that_is_allowed() -> None:
    fleet = [Candidate(NAMES[0], 0, 0, 8, waiting=1), Candidate(NAMES[1], 0, 7, 8)]
    assert names(select(fleet, 0, PLAIN)) == [["rollout-1"]]
    assert names(select(fleet, 0, LENIENT)) == [["rollout-0", "rollout-1"]]


def test_a_pinned_group_waits_for_room_at_its_instance_and_goes_elsewhere_when_that_may_not_serve_it() -> None:
    full, free = Candidate(NAMES[0], 3, 9, 8), Candidate(NAMES[1], 3, 0, 8)
    assert names(select([full, free], 2, PLAIN, pin=NAMES[0])) == []
    assert names(select([full, free], 2, PLAIN, pin=NAMES[1])) == [["rollout-1"]]
    gone = Candidate(NAMES[0], 3, 0, 8, serving=False)
    assert names(select([gone, free], 2, PLAIN, pin=NAMES[0])) == [["rollout-1"]]
    assert names(select([full, free], 2, PLAIN, pin=NAMES[4])) == [["rollout-1"]]


CANDIDATES = st.lists(st.sampled_from(NAMES), unique=True).flatmap(
    lambda there: st.tuples(
        *(
            st.builds(
                Candidate,
                st.just(name),
                st.integers(0, 4),
                st.integers(0, 20),
                st.sampled_from([0, 4, 16]),
                st.booleans(),
                st.sampled_from([0, 0, 2]),
            )
            for name in sorted(there)
        )
    )
)
STRATEGIES = st.builds(
    RoutingStrategy, candidate_sort_indicator=st.sampled_from(CandidateOrder), admission_reject_on_waiting=st.booleans()
)


@given(CANDIDATES, st.integers(0, 4), STRATEGIES, st.none() | st.sampled_from(NAMES))
def test_nobody_is_selected_who_does_not_serve_is_too_old_or_has_no_room(
    fleet: tuple[Candidate, ...], tag: int, strategy: RoutingStrategy, pin: InstanceId | None
) -> None:
    tiers = select(fleet, tag, strategy, pin)
    selected = [one for tier in tiers for one in tier]
    assert all(one.serving and one.version >= tag for one in selected)
    assert all(one.load < one.capacity + one.capacity // QUEUE_SHARE for one in selected)
    assert all(one.load < one.capacity for one in selected) or all(one.load >= one.capacity for one in selected)
    assert not (strategy.admission_reject_on_waiting and any(one.waiting for one in selected))
    assert all(tiers)
    if pin in {one.instance for one in fleet if one.serving and one.version >= tag}:
        assert {one.instance for one in selected} <= {pin}


@given(CANDIDATES, st.integers(0, 4), STRATEGIES)
def test_whoever_may_serve_and_has_a_free_slot_is_selected(
    fleet: tuple[Candidate, ...], tag: int, strategy: RoutingStrategy
) -> None:
    selected = {one.instance for tier in select(fleet, tag, strategy) for one in tier}
    for one in fleet:
        held = one.waiting and strategy.admission_reject_on_waiting
        if one.serving and one.version >= tag and one.load < one.capacity and not held:
            assert one.instance in selected
