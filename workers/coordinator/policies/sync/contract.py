"""What a sync policy is asked, and what it answers.

A policy only says whether the moment is good. The instance's own workflow syncs, and does so without a policy's word
when its patience ends; that a version is pulled whole and verified is the host's promise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .....schemas.config.sync_and_mig import SyncMode
from .....schemas.ids import InstanceId
from ..load import InstanceLoad


@dataclass(frozen=True, slots=True)
class SyncSnapshot:
    instance: InstanceId
    """That would sync. It serves, at an older version than `target`."""
    target: int
    """The newest version."""
    instances: Mapping[InstanceId, InstanceLoad]
    """All of the run, this one among them."""
    mode: SyncMode = SyncMode.INTERRUPT
    """What becomes of the requests in the engine."""
    queued: Sequence[int] = ()
    """Version tags of the trajectories that wait for room."""
    admits: Mapping[int, int] = field(default_factory=dict)
    """Trajectories of new groups that the run's ledger admits, by tag, as the run said when it last asked for room; a
    version that is not in it has none. Empty while the run has not asked lately, as it does while its ledger is full
    (or nothing may be started)."""

    @property
    def own(self) -> InstanceLoad:
        return self.instances[self.instance]


@dataclass(frozen=True, slots=True)
class SyncVerdict:
    due: bool
    reason: str
    """For people, whichever it is."""


SyncPolicy = Callable[[SyncSnapshot], SyncVerdict]
