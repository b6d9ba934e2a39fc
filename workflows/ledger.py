"""The staleness ledger: which groups may be generated, and which may be trained on, right now.

Slot positions carry no information, so this is unit-job scheduling with deadlines: a live group with tag V must be
trained by buffer V + eta, and every future buffer takes `batch_groups` groups and offers `offered_groups` slots.

    reserve   nothing  -> RESERVED     while every live group can still meet its deadline (Hall's condition)
    occupy    RESERVED -> OCCUPIED     the group is complete and scored
    release   live     -> gone         it failed, was filtered or was aborted; its slot is free at once
    consume   OCCUPIED -> gone         taken: the `batch_groups` with the earliest deadlines
              live     -> gone         dropped: at most `offered_groups - batch_groups`, unfinished groups first
    publish   version  -> version + 1  once the buffer of the current version was consumed

Promises: a group taken in buffer b satisfies V <= b <= V + eta (L1), and is taken once per reservation (L2); every
live group can meet its deadline at all times (L3); `ready` holds as soon as any legal choice of OCCUPIED groups fills
the buffer (L4). A call that raises changes nothing. No clock, no I/O; cost grows with eta and with the groups a call is
given, takes, drops or names, not with the live ones. Called by the run's `Groups`, and by `restore` for a run that
is resumed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, chain, islice
from typing import Any

from psrl.schemas.errors import LedgerError
from psrl.schemas.ids import GroupId, Version

FORMAT = 1  # Written into every snapshot; raise it when the meaning of a field changes.


class NotAdmissible(LedgerError):
    """These reservations would leave some live group without a buffer before its deadline."""

    def __init__(self, version: Version, requested: int, free: int) -> None:
        super().__init__(f"cannot reserve {requested} group(s) with tag {version}: {free} allowed now")
        self.version, self.requested, self.free = version, requested, free


class IllegalTransition(LedgerError):
    """The group, or the version, is not in the state this operation starts from."""


class GroupState(StrEnum):
    RESERVED = "reserved"  # It has a slot and is not finished.
    OCCUPIED = "occupied"  # It is complete and scored, and waits to be taken.


class BufferState(StrEnum):
    PENDING = "pending"  # Too few OCCUPIED groups; a slot is still EMPTY.
    STUCK = "stuck"  # Too few OCCUPIED groups and no EMPTY slot: its unfinished groups have to finish or go.
    READY = "ready"  # Enough OCCUPIED groups; no slot is EMPTY.
    READY_WITH_CAPACITY = "ready_with_capacity"  # Enough OCCUPIED groups; a slot is still EMPTY.


@dataclass(frozen=True, slots=True)
class BufferView:
    """One buffer as people see it. Derived from the live groups; no decision reads it."""

    buffer: int
    empty: int
    reserved: int
    occupied: int
    state: BufferState


@dataclass(frozen=True, slots=True)
class Consumption:
    """What `consume` did. `taken` is None when it did nothing; `blocking` then names the unfinished due groups."""

    buffer: int
    taken: tuple[GroupId, ...] | None
    dropped: tuple[GroupId, ...] = ()
    blocking: tuple[GroupId, ...] = ()


class Ledger:
    """Reserve, Occupy, Release, Consume, Publish; the module's docstring has the promises."""

    def __init__(self, *, staleness: int, batch_groups: int, offered_groups: int) -> None:
        self.staleness, self.batch_groups, self.offered_groups = staleness, batch_groups, offered_groups
        for key, least in (("staleness", 0), ("batch_groups", 1), ("offered_groups", batch_groups)):
            if (value := getattr(self, key)) < least:
                raise ValueError(f"{key} = {value}: must be at least {least}")
        self.version = Version(0)  # The newest published version.
        self.buffer = 0  # The next to consume: `version` while the trainer waits, `version + 1` while it works.
        self._tags: dict[GroupId, Version] = {}  # Of every live group, in order of reservation.
        self._serial = 0  # Numbers the reservations.
        # Entry i holds the deadline `buffer + i`, the last one `version + staleness`: from group to serial, unfinished
        # groups in order of reservation, the others in order of completion.
        self._reserved: list[dict[GroupId, int]] = [{} for _ in range(staleness + 1)]
        self._occupied: list[dict[GroupId, int]] = [{} for _ in range(staleness + 1)]

    @property
    def reserved_count(self) -> int:
        return sum(map(len, self._reserved))

    @property
    def occupied_count(self) -> int:
        return sum(map(len, self._occupied))

    @property
    def open_tags(self) -> range:
        """The versions that a reservation may be made with."""
        return range(max(0, self.buffer - self.staleness), self.version + 1)

    @property
    def ready(self) -> bool:
        """Would `consume` take a batch now?"""
        enough = self.buffer <= self.version and self.occupied_count >= self.batch_groups
        # Reservations that must sit in this buffer, all being as late as possible, would have to be dropped. OCCUPIED
        # groups never push the drops over the limit: the batch takes the earliest of them.
        return enough and self._reserved_by_buffer()[0] <= self.offered_groups - self.batch_groups

    def tag(self, group: GroupId) -> Version | None:
        """The group's version tag; None when it is not live."""
        return self._tags.get(group)

    def state(self, group: GroupId) -> GroupState | None:
        """The group's state; None when it is not live."""
        if group not in self._tags:
            return None
        return GroupState.RESERVED if group in self._reserved[self._index(group)] else GroupState.OCCUPIED

    def live_groups(self) -> tuple[GroupId, ...]:
        """In order of reservation."""
        return tuple(self._tags)

    def free(self, version: Version) -> int:
        """How many more groups with this tag may be reserved now; 0 when the version is not admissible."""
        first = version + self.staleness - self.buffer
        if not 0 <= version <= self.version or first < 0:
            return 0
        live = accumulate(len(r) + len(o) for r, o in zip(self._reserved, self._occupied, strict=True))
        return min([self.offered_groups * i - count for i, count in enumerate(live, 1)][first:])

    def reserve(self, version: Version, groups: Sequence[GroupId]) -> None:
        """Take one slot per group, all or nothing. Their order breaks ties among dropped groups."""
        for group, times in Counter(groups).items():
            if times > 1 or group in self._tags:
                raise IllegalTransition(f"cannot reserve {self._name(group)} twice; allowed: an id not live")
        if len(groups) > (free := self.free(version)):
            raise NotAdmissible(version, len(groups), free)
        for group in groups:
            self._serial += 1
            self._tags[group] = version
            self._reserved[self._index(group)][group] = self._serial

    def occupy(self, group: GroupId) -> None:
        """The group is complete, scored and not filtered out."""
        if self.state(group) is not GroupState.RESERVED:
            raise IllegalTransition(f"cannot occupy {self._name(group)}; allowed: a RESERVED group")
        self._occupied[self._index(group)][group] = self._reserved[self._index(group)].pop(group)

    def release(self, group: GroupId) -> None:
        """A live group leaves."""
        if (state := self.state(group)) is None:
            raise IllegalTransition(f"cannot release {self._name(group)}; allowed: a live group")
        pools = self._reserved if state is GroupState.RESERVED else self._occupied
        del pools[self._index(group)][group], self._tags[group]

    def consume(self) -> Consumption:
        """Take the batch for this buffer and drop what has no slot any more; or, when not ready, do nothing."""
        if not self.ready:
            return Consumption(self.buffer, None, blocking=self._blocking())
        taken = self._remove([pool.items() for pool in self._occupied], self.batch_groups)
        dropped: dict[GroupId, int] = {}
        for i in range(len(self._reserved)):
            reserved, occupied = self._reserved[: i + 1], self._occupied[: i + 1]
            surplus = sum(map(len, reserved + occupied)) - self.offered_groups * i
            # Among OCCUPIED groups the last to complete goes first: the others have waited longer.
            pools = [pool.items() for pool in reserved] + [reversed(pool.items()) for pool in occupied]
            dropped |= self._remove(pools, max(0, surplus))
        del self._reserved[0], self._occupied[0]  # Empty by now: what was due here is taken or dropped.
        self.buffer += 1
        return Consumption(self.buffer - 1, tuple(taken), tuple(sorted(dropped, key=dropped.__getitem__)))

    def publish(self, version: Version) -> None:
        """The weights trained from buffer `version - 1` are out."""
        if version != self.version + 1 or self.buffer != version:
            allowed = f"version {self.version + 1}, after buffer {self.version} (next to consume: {self.buffer})"
            raise IllegalTransition(f"cannot publish version {version}; allowed: {allowed}")
        self.version = version
        self._reserved.append({})
        self._occupied.append({})

    def view(self) -> tuple[BufferView, ...]:
        """The buffers that may hold live groups: the OCCUPIED fill the earliest, reservations the latest."""
        reserved = self._reserved_by_buffer()
        latest = _as_late_as_possible(self._occupied, [self.offered_groups - count for count in reserved])
        buffers, waiting, late = [], self.occupied_count, 0  # `late`: groups that cannot wait for a later buffer.
        for i, late_here in enumerate(latest):
            room, late = self.offered_groups - reserved[i], late + late_here
            occupied = max(late, min(self.batch_groups, room, waiting))
            late, waiting, empty = late - occupied, waiting - occupied, room - occupied
            if occupied >= self.batch_groups:
                state = BufferState.READY_WITH_CAPACITY if empty else BufferState.READY
            else:
                state = BufferState.PENDING if empty else BufferState.STUCK
            buffers.append(BufferView(self.buffer + i, empty, reserved[i], occupied, state))
        return tuple(buffers)

    def to_dict(self) -> dict[str, Any]:
        """A snapshot for JSON; `from_dict` continues from it as if nothing had happened."""
        keys = ("staleness", "batch_groups", "offered_groups", "version", "buffer")
        live = {"live": [list(item) for item in self._tags.items()], "occupied": list(chain(*self._occupied))}
        return {"format": FORMAT} | {key: getattr(self, key) for key in keys} | live

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Ledger":
        if data.get("format") != FORMAT or (ahead := data["buffer"] - data["version"]) not in (0, 1):
            raise LedgerError(f"not a ledger snapshot of format {FORMAT} with buffer = version or version + 1")
        ledger = cls(**{key: data[key] for key in ("staleness", "batch_groups", "offered_groups")})
        ledger.version, ledger.buffer = data["version"], data["buffer"]
        del ledger._reserved[:ahead], ledger._occupied[:ahead]
        for group, tag in data["live"]:
            ledger.reserve(tag, [group])  # Refuses what no ledger can have written.
        for group in data["occupied"]:
            ledger.occupy(group)
        return ledger

    def _index(self, group: GroupId) -> int:
        return self._tags[group] + self.staleness - self.buffer

    def _name(self, group: GroupId) -> str:
        return f"group {group!r} ({getattr(self.state(group), 'name', 'not live')})"

    def _reserved_by_buffer(self) -> list[int]:
        return _as_late_as_possible(self._reserved, [self.offered_groups] * len(self._reserved))

    def _blocking(self) -> tuple[GroupId, ...]:
        """The unfinished groups due in this buffer; without any, those that crowd the next ones into it."""
        if any(self._reserved[:1]) or self.occupied_count < self.batch_groups:
            return tuple(chain(*self._reserved[:1]))
        counts = enumerate(accumulate(map(len, self._reserved)), 1)
        crowd = next((i for i, count in counts if count > self.offered_groups * i - self.batch_groups), 0)
        return tuple(chain(*self._reserved[:crowd]))

    def _remove(self, pools: Iterable[Iterable[tuple[GroupId, int]]], count: int) -> dict[GroupId, int]:
        """Release the first `count` groups of these pools."""
        removed = dict(islice(chain.from_iterable(pools), count))
        for group in removed:
            self.release(group)
        return removed


def _as_late_as_possible(due: Sequence[Sized], space: Sequence[int]) -> list[int]:
    """Put the groups of `due[i]` in buffers up to `i`, as late as `space` allows; how many land in each buffer."""
    placed, waiting = [0] * len(due), 0
    for i in reversed(range(len(due))):
        waiting += len(due[i])
        placed[i] = min(waiting, space[i])
        waiting -= placed[i]
    return placed
