"""The rooms of the mutation tests: their code and their tests exist."""

from pathlib import Path

import pytest

from tests.mutants.rooms import ROOMS, Room, room_of

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.code)
def test_a_room_and_its_tests_exist(room: Room) -> None:
    assert [path for path in (room.code, *room.tests) if not (REPOSITORY / path).exists()] == []


def test_a_file_of_a_room_is_held_to_the_rooms_tests() -> None:
    assert room_of("workflows/run/dispatch.py").tests == room_of("workflows/run").tests


def test_what_is_in_no_room_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match=r"'schemas/ids\.py' is in no room"):
        room_of("schemas/ids.py")
