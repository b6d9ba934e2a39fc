"""How many groups to start, and at which versions."""

from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.ids import GroupId, Version, training_group
from psrl.schemas.messages.rollout import DispatchRoom
from psrl.workflows.ledger import Ledger
from psrl.workflows.run.dispatch import groups_still_needed, plan_wave


def ledger(staleness: int = 1, batch: int = 4, offered: int = 4) -> Ledger:
    return Ledger(staleness=staleness, batch_groups=batch, offered_groups=offered)


def room(version: int, groups: int) -> DispatchRoom:
    return DispatchRoom(version=version, groups=groups)


def test_the_newest_version_with_room_comes_first() -> None:
    book = ledger()
    for version in (1, 2):
        groups = [training_group(100 * version + i) for i in range(4)]
        book.reserve(Version(version - 1), groups)
        for group in groups:
            book.occupy(group)
        book.consume()
        book.publish(Version(version))
    wave = plan_wave(book, [room(1, 8), room(2, 3)], needed=100, limit=32)
    assert wave is not None
    assert (wave.version, wave.groups) == (2, 3)


def test_nothing_starts_without_room_or_need() -> None:
    assert plan_wave(ledger(), [], needed=10, limit=32) is None
    assert plan_wave(ledger(), [room(0, 0)], needed=10, limit=32) is None
    assert plan_wave(ledger(), [room(0, 5)], needed=0, limit=32) is None


def test_no_wave_is_planned_at_a_version_the_ledger_does_not_know() -> None:
    assert plan_wave(ledger(), [room(3, 5)], needed=10, limit=32) is None


@given(st.integers(0, 3), st.integers(1, 5), st.integers(0, 3), st.integers(0, 40), st.integers(1, 40))
def test_a_wave_is_always_admitted(staleness: int, batch: int, spare: int, rooms: int, limit: int) -> None:
    book = ledger(staleness, batch, batch + spare)
    total, drawn = 4, 0
    while (wave := plan_wave(book, [room(0, rooms)], groups_still_needed(book, total), limit)) is not None:
        book.reserve(wave.version, [GroupId(str(drawn + i)) for i in range(wave.groups)])
        drawn += wave.groups
    assert drawn == (0 if rooms == 0 else min((staleness + 1), total) * (batch + spare))


def test_live_groups_count_as_drawn_and_finished_buffers_do_not() -> None:
    book = ledger()
    assert groups_still_needed(book, total_steps=3) == 12
    book.reserve(Version(0), [training_group(i) for i in range(4)])
    assert groups_still_needed(book, total_steps=3) == 8
    for i in range(4):
        book.occupy(training_group(i))
    book.consume()
    assert groups_still_needed(book, total_steps=3) == 8
