"""What a run knows of its instances: when it gives up for want of one, and which it starts anew."""

import pytest

from psrl.schemas.config import parse_config
from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import EndedInstance, InstanceChanged
from psrl.workflows.run.fleet import Fleet
from tests.support.scripted_parts import minimal_config

PATIENCE_S = 100
ONE, TWO = InstanceId("rollout-0"), InstanceId("rollout-1")
LIMITS = parse_config(minimal_config(deployment={"restart_budget": 2, "restart_budget_heals_s": 600})).psrl.deployment


def fleet(now: float = 0.0) -> Fleet:
    fleet = Fleet()
    for name in (ONE, TWO):
        fleet.add(name, now)
    return fleet


def told(name: InstanceId, state: InstanceState, quarantined_s: float = 0.0) -> InstanceChanged:
    return InstanceChanged(instance=name, state=state, version=-1, quarantined_s=quarantined_s)


def left(*changes: tuple[InstanceState, float]) -> bool:
    """Whether a run with instances in these states, and so long quarantined, has none left."""
    known = fleet()
    for name, (state, seconds) in zip((ONE, TWO), changes, strict=False):
        assert known.hear(told(name, state, seconds))
    return known.none_left(PATIENCE_S)


def test_a_quarantine_counts_only_when_every_try_within_the_limit_has_failed() -> None:
    assert not left((InstanceState.QUARANTINED, 99), (InstanceState.QUARANTINED, 500))
    assert left((InstanceState.QUARANTINED, 100), (InstanceState.QUARANTINED, 500))


@pytest.mark.parametrize("state", sorted(set(InstanceState) - {InstanceState.QUARANTINED, InstanceState.STOPPED}))
def test_one_instance_that_may_serve_is_enough(state: InstanceState) -> None:
    assert not left((InstanceState.QUARANTINED, 500), (state, 0))


def test_a_stopped_instance_does_not_come_back() -> None:
    assert left((InstanceState.STOPPED, 0), (InstanceState.QUARANTINED, 500))
    assert not left((InstanceState.STOPPED, 0), (InstanceState.QUARANTINED, 5))


def test_an_instance_that_has_not_reported_may_still_come() -> None:
    assert not left((InstanceState.QUARANTINED, 500))


def test_an_instance_of_another_run_is_not_heard() -> None:
    assert not fleet().hear(told(InstanceId("rollout-7"), InstanceState.SERVING))


def test_an_instance_that_ended_is_started_anew_within_its_budget_and_then_counts_as_stopped() -> None:
    known, ended = fleet(), EndedInstance(instance=ONE, stopped=False, reason="its workflow ended as TERMINATED")
    assert [known.end(ended, now, LIMITS) for now in (1, 2, 3)] == [True, True, False]
    assert known.instances[ONE].state is InstanceState.STOPPED
    assert "TERMINATED (restarted 2 times)" in str(known.instances[ONE])
    assert known.living == (TWO,)


def test_a_workflow_that_lived_for_long_has_its_whole_budget_again() -> None:
    known, ended = fleet(), EndedInstance(instance=ONE, stopped=False, reason="")
    for now in (1, 2, 700, 701):
        assert known.end(ended, now, LIMITS)
        known.add(ONE, now)
    assert not known.end(ended, 702, LIMITS)


def test_an_instance_that_gave_its_engine_back_is_not_started_anew() -> None:
    known = fleet()
    assert not known.end(EndedInstance(instance=ONE, stopped=True, reason=""), 1, LIMITS)
    assert known.instances[ONE].state is InstanceState.STOPPED
