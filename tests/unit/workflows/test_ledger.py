"""The ledger's edges: refusals, ties, the derived picture, snapshots. Whole runs are in the traces and the machine."""

import json
from itertools import count

import pytest

from psrl.schemas.errors import LedgerError
from psrl.schemas.ids import GroupId, Version
from psrl.workflows.ledger import (
    BufferState,
    BufferView,
    Consumption,
    GroupState,
    IllegalTransition,
    Ledger,
    NotAdmissible,
)

V0, V1, V2 = Version(0), Version(1), Version(2)


def ids(names: str) -> tuple[GroupId, ...]:
    return tuple(GroupId(name) for name in names)


def ledger(
    staleness: int = 1,
    batch: int = 2,
    offered: int = 2,
    *,
    reserved: str = "",
    occupied: str = "",
) -> Ledger:
    """A fresh ledger in which these groups were reserved at version 0, in this order, then completed in this order."""
    made = Ledger(staleness=staleness, batch_groups=batch, offered_groups=offered)
    made.reserve(V0, ids(reserved or occupied))
    for group in ids(occupied):
        made.occupy(group)
    return made


def counts(made: Ledger) -> list[tuple[int, int, int, BufferState]]:
    return [(view.empty, view.reserved, view.occupied, view.state) for view in made.view()]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((-1, 2, 2), "staleness = -1: must be at least 0"),
        ((0, 0, 2), "batch_groups = 0: must be at least 1"),
        ((0, 3, 2), "offered_groups = 2: must be at least 3"),
    ],
)
def test_impossible_sizes_are_refused_by_name(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ledger(*sizes)


def test_a_reservation_takes_a_place_under_its_tag() -> None:
    made = ledger(reserved="ab", occupied="b")
    assert (made.version, made.buffer, made.free(V0)) == (0, 0, 2)
    assert made.live_groups() == ids("ab")
    assert (made.tag(GroupId("a")), made.state(GroupId("a"))) == (0, GroupState.RESERVED)
    assert (made.tag(GroupId("b")), made.state(GroupId("b"))) == (0, GroupState.OCCUPIED)
    assert (made.reserved_count, made.occupied_count) == (1, 1)


def test_a_group_that_is_not_live_has_neither_tag_nor_state() -> None:
    made = ledger()
    assert made.tag(GroupId("a")) is None
    assert made.state(GroupId("a")) is None


def test_more_reservations_than_places_are_refused_as_a_whole() -> None:
    made = ledger(reserved="abc")
    before = made.to_dict()
    with pytest.raises(NotAdmissible, match=r"reserve 2 group\(s\) with tag 0: 1 allowed now") as refused:
        made.reserve(V0, ids("de"))
    assert (refused.value.version, refused.value.requested, refused.value.free) == (0, 2, 1)
    assert made.to_dict() == before


@pytest.mark.parametrize("version", [-1, 1])
def test_a_version_that_is_not_published_admits_nothing(version: int) -> None:
    made = ledger()
    assert made.free(Version(version)) == 0
    with pytest.raises(NotAdmissible):
        made.reserve(Version(version), ids("a"))


def test_a_version_whose_last_buffer_was_consumed_admits_nothing() -> None:
    made = ledger(staleness=0, occupied="ab")
    made.consume()
    made.publish(V1)
    assert (made.free(V0), made.free(V1)) == (0, 2)


def test_an_old_tag_has_fewer_places_than_a_new_one() -> None:
    made = ledger(occupied="ab")
    made.consume()
    made.publish(V1)
    assert (made.free(V0), made.free(V1)) == (2, 4)
    made.reserve(V1, ids("cde"))
    assert (made.free(V0), made.free(V1)) == (1, 1)


@pytest.mark.parametrize("names", ["a", "ca", "cc"])
def test_a_live_or_repeated_id_is_refused_and_nothing_is_reserved(names: str) -> None:
    made = ledger(reserved="ab")
    with pytest.raises(IllegalTransition, match=r"cannot reserve group '[ac]' .* allowed: an id not live"):
        made.reserve(V0, ids(names))
    assert made.live_groups() == ids("ab")


def test_an_id_may_come_back_once_it_is_released() -> None:
    made = ledger(reserved="ab")
    made.release(GroupId("a"))
    made.reserve(V0, ids("a"))
    assert made.live_groups() == ids("ba")


def test_occupying_twice_names_the_group_its_state_and_what_was_allowed() -> None:
    made = ledger(occupied="a")
    with pytest.raises(IllegalTransition, match=r"occupy group 'a' \(OCCUPIED\); allowed: a RESERVED group"):
        made.occupy(GroupId("a"))


@pytest.mark.parametrize("operation", ["occupy", "release"])
def test_an_unknown_group_can_neither_complete_nor_leave(operation: str) -> None:
    with pytest.raises(IllegalTransition, match=rf"cannot {operation} group 'x' \(not live\); allowed: "):
        getattr(ledger(), operation)(GroupId("x"))


def test_a_late_report_of_a_taken_group_is_refused() -> None:
    made = ledger(occupied="ab")
    made.consume()
    for operation in (made.occupy, made.release):
        with pytest.raises(IllegalTransition, match="not live"):
            operation(GroupId("a"))


def test_releasing_an_occupied_group_frees_its_place_at_once() -> None:
    made = ledger(occupied="abcd")
    assert made.free(V0) == 0
    made.release(GroupId("b"))
    assert (made.free(V0), made.occupied_count) == (1, 3)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_version_is_published_before_its_buffer_was_consumed(version: int) -> None:
    with pytest.raises(IllegalTransition, match=rf"cannot publish version {version}; allowed: version 1"):
        ledger().publish(Version(version))


@pytest.mark.parametrize("version", [0, 2])
def test_versions_are_published_one_by_one(version: int) -> None:
    made = ledger(occupied="ab")
    made.consume()
    with pytest.raises(IllegalTransition, match="allowed: version 1"):
        made.publish(Version(version))
    made.publish(V1)
    assert (made.version, made.buffer) == (1, 1)


def test_nothing_is_consumed_while_the_trainer_works() -> None:
    made = ledger(occupied="abcd")
    made.consume()
    assert not made.ready
    assert made.consume() == Consumption(1, None)
    made.publish(V1)
    assert made.consume().taken == ids("cd")


def test_the_earliest_deadlines_are_taken_first_and_ties_by_order_of_completion() -> None:
    made = ledger(occupied="ab", reserved="abcd")
    made.consume()
    made.publish(V1)
    made.reserve(V1, ids("ef"))
    for group in ids("fdec"):
        made.occupy(group)
    assert made.consume() == Consumption(1, ids("dc"))
    made.publish(V2)
    assert made.consume() == Consumption(2, ids("fe"))


def test_unfinished_groups_are_dropped_before_finished_ones_and_in_order_of_reservation() -> None:
    made = ledger(staleness=1, batch=1, offered=3, reserved="abcdef", occupied="fdb")
    assert made.consume() == Consumption(0, ids("f"), dropped=ids("ac"))
    assert made.live_groups() == ids("bde")


def test_of_finished_groups_the_last_to_complete_are_dropped_and_named_in_order_of_reservation() -> None:
    made = ledger(staleness=1, batch=1, offered=3, reserved="abcdef", occupied="fdbeca")
    assert made.consume() == Consumption(0, ids("f"), dropped=ids("ac"))
    assert made.live_groups() == ids("bde")


def test_nothing_is_dropped_that_still_has_a_place() -> None:
    made = ledger(staleness=1, batch=1, offered=3, reserved="abcd", occupied="d")
    assert made.consume() == Consumption(0, ids("d"))


def stuck_on_due_groups() -> Ledger:
    """Version 1 waits for buffer 1: `b` is due in it and unfinished, `d` and `e` would fill it."""
    made = ledger(reserved="abc", occupied="ac")
    made.consume()
    made.publish(V1)
    made.reserve(V1, ids("de"))
    for group in ids("de"):
        made.occupy(group)
    return made


def test_a_buffer_is_stuck_on_the_unfinished_groups_due_in_it() -> None:
    made = stuck_on_due_groups()
    before = made.to_dict()
    assert not made.ready
    assert made.consume() == Consumption(1, None, blocking=ids("b"))
    assert made.to_dict() == before
    assert counts(made)[0] == (0, 1, 1, BufferState.STUCK)


@pytest.mark.parametrize(("operation", "taken"), [("occupy", "bd"), ("release", "de")])
def test_a_stuck_buffer_goes_on_when_what_blocks_it_finishes_or_goes(operation: str, taken: str) -> None:
    made = stuck_on_due_groups()
    getattr(made, operation)(GroupId("b"))
    assert made.consume().taken == ids(taken)


def test_groups_that_crowd_later_buffers_are_named_when_none_is_due_yet() -> None:
    made = ledger(staleness=2, reserved="abcdef", occupied="ab")
    made.consume()
    made.publish(V1)
    made.reserve(V1, ids("gh"))
    for group in ids("gh"):
        made.occupy(group)
    assert made.consume() == Consumption(1, None, blocking=ids("cdef"))
    made.release(GroupId("c"))
    made.release(GroupId("d"))
    assert made.consume().taken == ids("gh")


def test_only_the_groups_that_crowd_this_buffer_are_named_and_all_of_them() -> None:
    """Buffers 4 and 5 have as many unfinished groups as places; the seventh, of buffer 6, leaves this one none."""
    live = [(name, tag) for tag, names in enumerate(("ab", "cd", "efg", "xy")) for name in names]
    made = Ledger.from_dict(
        {
            **{"format": ledger().to_dict()["format"], "staleness": 4, "batch_groups": 2, "offered_groups": 2},
            **{"version": 3, "buffer": 3, "live": live, "occupied": ["x", "y"]},
        }
    )
    assert made.consume() == Consumption(3, None, blocking=ids("abcdefg"))
    made.release(GroupId("b"))
    assert made.consume().taken == ids("xy")


def test_a_pending_buffer_names_nobody_while_nothing_is_due() -> None:
    assert ledger(reserved="abc", occupied="a").consume() == Consumption(0, None)


def test_without_staleness_generation_and_training_alternate() -> None:
    made = ledger(staleness=0)
    names = count()
    for version in range(3):
        groups = [GroupId(str(next(names))) for _ in range(2)]
        made.reserve(Version(version), groups)
        assert made.free(Version(version)) == 0
        assert made.consume().blocking == tuple(groups)
        for group in groups:
            made.occupy(group)
        assert made.consume() == Consumption(version, tuple(groups))
        assert (made.free(Version(version)), made.view()) == (0, ())
        made.publish(Version(version + 1))


def test_the_picture_shows_occupied_groups_early_and_reservations_late() -> None:
    made = ledger(staleness=1, batch=3, offered=3, reserved="abcde", occupied="a")
    assert made.view() == (
        BufferView(0, empty=1, reserved=1, occupied=1, state=BufferState.PENDING),
        BufferView(1, empty=0, reserved=3, occupied=0, state=BufferState.STUCK),
    )


def test_the_picture_of_a_redundant_run_fills_one_batch_after_the_other() -> None:
    made = ledger(staleness=1, batch=2, offered=4, reserved="abcdef", occupied="ab")
    assert counts(made) == [(2, 0, 2, BufferState.READY_WITH_CAPACITY), (0, 4, 0, BufferState.STUCK)]
    made.occupy(GroupId("c"))
    made.occupy(GroupId("d"))
    assert counts(made) == [
        (2, 0, 2, BufferState.READY_WITH_CAPACITY),
        (0, 2, 2, BufferState.READY),
    ]


def test_the_picture_keeps_finished_groups_within_their_deadline() -> None:
    made = ledger(staleness=0, batch=1, offered=3, occupied="abc")
    assert counts(made) == [(0, 0, 3, BufferState.READY)]
    assert made.consume() == Consumption(0, ids("a"), dropped=ids("bc"))


def test_a_snapshot_survives_json_and_keeps_both_orders() -> None:
    made = ledger(staleness=1, batch=1, offered=3, reserved="fedcba", occupied="bdf")
    snapshot = json.loads(json.dumps(made.to_dict()))
    restored = Ledger.from_dict(snapshot)
    assert restored.to_dict() == snapshot == made.to_dict()
    assert restored.consume() == made.consume() == Consumption(0, ids("b"), dropped=ids("ec"))


def test_a_snapshot_taken_while_the_trainer_works_continues_there() -> None:
    made = ledger(occupied="abc")
    made.consume()
    restored = Ledger.from_dict(made.to_dict())
    assert (restored.version, restored.buffer, restored.live_groups()) == (0, 1, ids("c"))
    restored.publish(V1)
    assert restored.free(V1) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2},
        {"format": None},
        {"buffer": 2},
        {"version": 1},
        {"live": [["a", 1]]},
        {"live": [["a", 0], ["a", 0]]},
        {"live": [[name, 0] for name in "abcde"]},
        {"occupied": ["b"]},
    ],
)
def test_a_snapshot_no_ledger_can_have_written_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LedgerError):
        Ledger.from_dict(ledger(reserved="a").to_dict() | wrong)
