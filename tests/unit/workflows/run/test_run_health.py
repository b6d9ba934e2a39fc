"""When a run gives up for want of an instance."""

from psrl.schemas.config import parse_config
from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import InstanceChanged
from psrl.workflows.run.health import no_instance_left
from tests.support.scripted_parts import minimal_config

CONFIG = parse_config(minimal_config(deployment={"n_rollout_instances": 2, "no_instance_timeout_s": 100}))


def left(*changes: tuple[InstanceState, float]) -> bool:
    """Whether a run with instances in these states, and so long quarantined, has none left."""
    named = {
        InstanceId(f"rollout-{i}"): InstanceChanged(
            instance=InstanceId(f"rollout-{i}"), state=state, version=-1, quarantined_s=seconds
        )
        for i, (state, seconds) in enumerate(changes)
    }
    return no_instance_left(named, CONFIG)


def test_a_quarantine_counts_only_when_every_try_within_the_limit_has_failed() -> None:
    assert not left((InstanceState.QUARANTINED, 99), (InstanceState.QUARANTINED, 500))
    assert left((InstanceState.QUARANTINED, 100), (InstanceState.QUARANTINED, 500))


def test_one_instance_that_may_serve_is_enough() -> None:
    for state in (InstanceState.SERVING, InstanceState.STARTING, InstanceState.PULLING, InstanceState.PAUSING):
        assert not left((InstanceState.QUARANTINED, 500), (state, 0))


def test_a_stopped_instance_does_not_come_back() -> None:
    assert left((InstanceState.STOPPED, 0), (InstanceState.QUARANTINED, 500))
    assert not left((InstanceState.STOPPED, 0), (InstanceState.QUARANTINED, 5))


def test_an_instance_that_has_not_reported_may_still_come() -> None:
    assert not left((InstanceState.QUARANTINED, 500))
