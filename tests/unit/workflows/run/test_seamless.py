"""When instances are told of a new version, with `seamless_train_version`."""

import pytest

from psrl.schemas.config import parse_config
from psrl.schemas.ids import GroupId, InstanceId, Version, training_group
from psrl.schemas.messages.data import Admission
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import InstanceChanged
from psrl.workflows.ledger import Ledger
from psrl.workflows.run.control import Control
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.seamless import seamless
from psrl.workflows.run.state import RunState
from tests.support.scripted_parts import minimal_config

NAME = InstanceId("rollout-0")


def after_first_step(live: int, eta: int = 1, limit: int = 3, served: int = 0) -> RunState:
    """Version 1 is published; `live` groups of version 0 are being generated; one instance serves."""
    strategy = {"sync_and_mig_strategy": {"sync": {"seamless_train_version": limit}}}
    config = parse_config(minimal_config(staleness=eta, rollout_coordination=strategy)).model_dump(mode="json")
    ledger = Ledger(staleness=eta, batch_groups=2, offered_groups=2)
    first = names(0, 2)
    ledger.reserve(Version(0), first)
    for group in first:
        ledger.occupy(group)
    ledger.consume()
    ledger.publish(Version(1))
    if live:
        ledger.reserve(Version(0), names(2, live))
    admission = Admission(
        config=config, total_steps=10, prompts=9, skipped_too_long=0, validation_prompts=0, data_fingerprint="f"
    )
    state = RunState(admission=admission, control=Control(), groups=Groups(ledger=ledger))
    state.fleet.add(NAME, 0.0)
    state.fleet.hear(InstanceChanged(instance=NAME, state=InstanceState.SERVING, version=served))
    return state


def names(first: int, count: int) -> list[GroupId]:
    return [training_group(first + number) for number in range(count)]


def test_they_stay_until_the_next_buffer_is_complete() -> None:
    state = after_first_step(live=2)
    assert seamless(state)
    for group in names(2, 2):
        assert seamless(state)
        state.groups.ledger.occupy(group)
    assert not seamless(state)


def test_they_stay_while_groups_of_their_version_can_still_be_reserved() -> None:
    assert seamless(after_first_step(live=0))
    assert seamless(after_first_step(live=1))


@pytest.mark.parametrize(
    "state",
    [
        after_first_step(live=0, eta=0),  # nothing of version 0 may be in buffer 1
        after_first_step(live=0, served=-1),  # nobody serves a version that could be reserved
        after_first_step(live=2, limit=0),  # off
    ],
)
def test_they_are_told_where_the_buffer_could_never_be_completed_or_nobody_asked_for_it(state: RunState) -> None:
    assert not seamless(state)


def test_they_are_told_of_versions_past_the_limit_and_when_the_run_ends() -> None:
    assert seamless(after_first_step(live=2, limit=1))
    state = after_first_step(live=2, limit=1)
    state.control.stop(now=False)
    assert not seamless(state)
