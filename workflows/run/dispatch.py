"""How many groups to start now, and at which versions. Pure; used by `TrainingRun`."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...schemas.ids import Version
from ...schemas.messages.rollout import DispatchRoom
from ..ledger import Ledger


@dataclass(frozen=True)
class Wave:
    """Groups to start with one tag."""

    version: Version
    groups: int


def groups_still_needed(ledger: Ledger, total_steps: int) -> int:
    """Groups the rest of the run can use beyond those that are live: what lies past the last buffer is never drawn."""
    buffers_left = total_steps - ledger.buffer
    return max(0, buffers_left * ledger.offered_groups - ledger.reserved_count - ledger.occupied_count)


def plan_wave(ledger: Ledger, rooms: Sequence[DispatchRoom], needed: int, limit: int) -> Wave | None:
    """The newest version with room and ledger slots first: it has the latest deadline. `None`: nothing may start."""
    for room in sorted(rooms, key=lambda room: -room.version):
        version = Version(room.version)
        groups = min(room.groups, ledger.free(version), needed, limit)
        if groups > 0:
            return Wave(version, groups)
    return None
