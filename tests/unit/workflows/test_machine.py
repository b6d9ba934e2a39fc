"""A state changes only along its table."""

from enum import StrEnum

import pytest

from psrl.schemas.errors import InvariantViolated
from psrl.workflows.machine import Machine, Table, reachable


class Door(StrEnum):
    OPEN = "open"
    SHUT = "shut"
    WALLED_UP = "walled up"
    PAINTED = "painted"


TABLE: Table[Door] = {
    Door.OPEN: frozenset({Door.SHUT}),
    Door.SHUT: frozenset({Door.OPEN, Door.WALLED_UP}),
    Door.WALLED_UP: frozenset(),
    Door.PAINTED: frozenset({Door.OPEN}),
}


def test_a_legal_transition_is_made() -> None:
    door = Machine("the door", TABLE, Door.OPEN)
    door.to(Door.SHUT)
    assert door.state is Door.SHUT
    assert not door.final


def test_an_illegal_transition_is_refused_naming_what_was_allowed() -> None:
    door = Machine("the door", TABLE, Door.SHUT)
    with pytest.raises(InvariantViolated, match="the door: shut -> painted is not allowed; allowed: open, walled up"):
        door.to(Door.PAINTED)
    assert door.state is Door.SHUT


def test_a_final_state_is_never_left() -> None:
    door = Machine("the door", TABLE, Door.WALLED_UP)
    assert door.final
    with pytest.raises(InvariantViolated, match="none, it is final"):
        door.to(Door.OPEN)


def test_what_can_be_reached_is_found_through_the_table() -> None:
    assert reachable(TABLE, Door.OPEN) == {Door.OPEN, Door.SHUT, Door.WALLED_UP}
