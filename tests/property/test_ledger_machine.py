"""Any sequence of calls against a brute-force model, which schedules the live groups one by one instead of counting."""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psrl.schemas.ids import GroupId, Version
from psrl.workflows.ledger import BufferState, GroupState, IllegalTransition, Ledger, NotAdmissible


@dataclass
class Live:
    """One live group of the model; `completed` is None until it is OCCUPIED."""

    name: GroupId
    deadline: int
    reserved: int
    completed: int | None = None


def overfull(deadlines: list[int], buffer: int, slots: int) -> int | None:
    """Fill the buffers from `buffer` on, earliest deadline first; the first deadline that is missed, or None."""
    for place, deadline in enumerate(sorted(deadlines)):
        if deadline < buffer + place // slots:
            return deadline
    return None


NEWEST_FIRST = st.integers(1, 12).map(lambda number: [-1] * number)
"""Picks that leave old groups unfinished: what makes a buffer STUCK."""


class LedgerMachine(RuleBasedStateMachine):
    @initialize(eta=st.integers(0, 3), batch=st.integers(1, 3), spare=st.integers(0, 3))
    def start(self, eta: int, batch: int, spare: int) -> None:
        self.eta, self.batch, self.spare, self.slots = eta, batch, spare, batch + spare
        self.ledger = Ledger(staleness=eta, batch_groups=batch, offered_groups=self.slots)
        self.version = self.buffer = self.clock = 0
        self.live: list[Live] = []
        self.taken: set[GroupId] = set()

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def unfinished(self) -> list[Live]:
        return [group for group in self.live if group.completed is None]

    def finished(self) -> list[Live]:
        """In the order in which they are taken."""
        done = [group for group in self.live if group.completed is not None]
        return sorted(done, key=lambda group: (group.deadline, group.completed))

    def fits(self, extra: list[int]) -> bool:
        return overfull([group.deadline for group in self.live] + extra, self.buffer, self.slots) is None

    def room(self, version: int) -> int:
        if not 0 <= version <= self.version or version + self.eta < self.buffer:
            return 0
        room = 0
        while self.fits([version + self.eta] * (room + 1)):
            room += 1
        return room

    def fewest_drops(self) -> int | None:
        """Over every legal choice of a batch and of at most `spare` groups to drop; None when there is none."""
        finished = Counter(group.deadline for group in self.finished())
        everything = Counter(group.deadline for group in self.live)
        if self.buffer > self.version or finished.total() < self.batch:
            return None
        for drops in range(self.spare + 1):
            for batch in combinations_with_replacement(sorted(finished), self.batch):
                if not Counter(batch) <= finished:
                    continue
                rest = everything - Counter(batch)
                for dropped in combinations_with_replacement(sorted(rest), drops):
                    if Counter(dropped) <= rest:
                        kept = list((rest - Counter(dropped)).elements())
                        if overfull(kept, self.buffer + 1, self.slots) is None:
                            return drops
        return None

    def drop_one_by_one(self, rest: list[Live]) -> list[GroupId]:
        dropped: list[Live] = []
        while (late := overfull([group.deadline for group in rest], self.buffer + 1, self.slots)) is not None:
            due = [group for group in rest if group.deadline <= late]
            unfinished = [group for group in due if group.completed is None]
            least = min(unfinished or due, key=lambda group: (group.deadline, -(group.completed or 0), group.reserved))
            rest.remove(least)
            dropped.append(least)
        return [group.name for group in sorted(dropped, key=lambda group: group.reserved)]

    @rule(age=st.integers(-1, 3), number=st.integers(1, 8), fill=st.booleans())
    def reserve(self, age: int, number: int, fill: bool) -> None:
        version = Version(self.version - age)
        room = self.room(version)
        number = room if fill and room else number
        names = [GroupId(f"{self.tick():04d}") for _ in range(number)]
        if number > room:
            with pytest.raises(NotAdmissible) as refused:
                self.ledger.reserve(version, names)
            assert refused.value.free == room
            return
        self.ledger.reserve(version, names)
        self.live += [Live(name, version + self.eta, int(name)) for name in names]

    @precondition(lambda self: self.unfinished())
    @rule(picks=st.lists(st.integers(0, 63), min_size=1, max_size=6))
    def occupy(self, picks: list[int]) -> None:
        for pick in picks:
            if unfinished := self.unfinished():
                group = unfinished[pick % len(unfinished)]
                self.ledger.occupy(group.name)
                group.completed = self.tick()
                with pytest.raises(IllegalTransition):
                    self.ledger.occupy(group.name)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 63))
    def release(self, pick: int) -> None:
        group = self.live.pop(pick % len(self.live))
        self.ledger.release(group.name)
        with pytest.raises(IllegalTransition):
            self.ledger.release(group.name)

    def check_publish_is_refused(self, version: int) -> None:
        with pytest.raises(IllegalTransition):
            self.ledger.publish(Version(version))

    @rule()
    def consume(self) -> None:
        if self.buffer <= self.version:
            self.check_publish_is_refused(self.version + 1)
        drops = self.fewest_drops()
        twin = Ledger.from_dict(json.loads(json.dumps(self.ledger.to_dict())))
        done = self.ledger.consume()
        assert twin.consume() == done
        assert twin.to_dict() == self.ledger.to_dict()
        assert done.buffer == self.buffer
        if drops is None:
            assert (done.taken, done.dropped) == (None, ())
            due = [group.name for group in self.unfinished() if group.deadline <= self.buffer]
            assert list(done.blocking) == due or not due
            assert done.blocking or self.buffer > self.version or len(self.finished()) < self.batch
            return
        assert done.taken is not None
        batch = self.finished()[: self.batch]
        assert list(done.taken) == [group.name for group in batch]
        assert list(done.dropped) == self.drop_one_by_one([group for group in self.live if group not in batch])
        assert (len(done.dropped), done.blocking) == (drops, ())
        for group in batch:
            assert group.deadline - self.eta <= self.buffer <= group.deadline
        assert self.taken.isdisjoint(done.taken)
        self.taken |= set(done.taken)
        self.live = [group for group in self.live if group.name not in done.taken + done.dropped]
        self.buffer += 1

    @precondition(lambda self: self.buffer > self.version)
    @rule()
    def publish(self) -> None:
        self.check_publish_is_refused(self.version + 2)
        self.version += 1
        self.ledger.publish(Version(self.version))

    @rule(
        age=st.integers(0, 3),
        number=st.integers(1, 8),
        fill=st.booleans(),
        picks=st.lists(st.integers(0, 63), min_size=3, max_size=15) | NEWEST_FIRST,
        publish=st.integers(0, 3),
    )
    def go_round(self, age: int, number: int, fill: bool, picks: list[int], publish: int) -> None:
        """One step of a run. Single calls alone would seldom get past the first buffers."""
        if self.buffer > self.version:
            self.publish()
        self.reserve(age, number, fill)
        self.occupy(picks)
        self.consume()
        if publish and self.buffer > self.version:
            self.publish()

    @rule()
    def release_what_blocks(self) -> None:
        """Aborting the named groups, as often as some are named, always ends in a batch once enough are OCCUPIED."""
        while blocking := self.ledger.consume().blocking if not self.ledger.ready else ():
            for name in blocking:
                self.ledger.release(name)
            self.live = [group for group in self.live if group.name not in blocking]
        assert self.ledger.ready or self.buffer > self.version or len(self.finished()) < self.batch

    @rule()
    def restart(self) -> None:
        snapshot = json.loads(json.dumps(self.ledger.to_dict()))
        self.ledger = Ledger.from_dict(snapshot)
        assert self.ledger.to_dict() == snapshot

    @invariant()
    def agrees_with_the_model(self) -> None:
        ledger = self.ledger
        assert (ledger.version, ledger.buffer) == (self.version, self.buffer)
        assert ledger.live_groups() == tuple(group.name for group in self.live)
        assert (ledger.reserved_count, ledger.occupied_count) == (len(self.unfinished()), len(self.finished()))
        for group in self.live:
            state = GroupState.RESERVED if group.completed is None else GroupState.OCCUPIED
            assert (ledger.state(group.name), ledger.tag(group.name)) == (state, group.deadline - self.eta)
        for version in range(self.version - self.eta - 2, self.version + 2):
            assert ledger.free(Version(version)) == self.room(version)

    @invariant()
    def every_live_group_can_meet_its_deadline(self) -> None:
        assert self.fits([])

    @invariant()
    def ready_as_soon_as_any_legal_choice_fills_the_buffer(self) -> None:
        assert self.ledger.ready == (self.fewest_drops() is not None)

    @invariant()
    def a_batch_of_finished_groups_and_nothing_unfinished_is_enough(self) -> None:
        if self.buffer <= self.version and len(self.finished()) >= self.batch and not self.unfinished():
            assert self.ledger.ready

    @invariant()
    def the_picture_is_a_schedule(self) -> None:
        picture = self.ledger.view()
        assert [view.buffer for view in picture] == list(range(self.buffer, self.version + self.eta + 1))
        assert all(view.empty + view.reserved + view.occupied == self.slots for view in picture)
        assert all(min(view.empty, view.reserved, view.occupied) >= 0 for view in picture)
        assert sum(view.reserved for view in picture) == len(self.unfinished())
        assert sum(view.occupied for view in picture) == len(self.finished())
        assert sum(view.empty for view in picture) == self.ledger.free(Version(self.version))
        for view in picture:
            so_far = picture[: view.buffer - self.buffer + 1]
            due = Counter(group.completed is None for group in self.live if group.deadline <= view.buffer)
            assert sum(view.reserved for view in so_far) >= due[True]
            assert sum(view.occupied for view in so_far) >= due[False]
        if picture and self.buffer <= self.version:
            filled = picture[0].state in (BufferState.READY, BufferState.READY_WITH_CAPACITY)
            assert filled == self.ledger.ready


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=400, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
