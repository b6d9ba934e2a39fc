"""Messages between the coordinator and those that it steers: instances that want to sync, hosts that hold requests."""

from enum import StrEnum

from ..config.sync_and_mig import Migration, SyncAndMigStrategy, SyncMode, SyncStrategy
from ..ids import InstanceId, RunId
from .base import Message, Said

__all__ = [
    "HostCommand",
    "HostCommandKind",
    "Migration",
    "SyncAndMigStrategy",
    "SyncAnswer",
    "SyncMode",
    "SyncRequest",
    "SyncStrategy",
]


class HostCommandKind(StrEnum):
    """What a host is told to do."""

    NOTHING = "nothing"
    """A sign of life of the coordinator."""
    INTERRUPT = "interrupt"
    """End the segments of these requests: their tokens stay stored, and they are routed anew."""


class HostCommand(Message):
    """From the coordinator to a host, down the stream on which that reports. One that gets lost changes nothing."""

    run_id: RunId = RunId("")
    """Whose requests they are."""
    kind: HostCommandKind
    requests: tuple[str, ...] = ()
    """By the engine's ids, as the host reported them. One that is not there any more is passed over."""
    reason: Said = ""


class SyncRequest(Message):
    """May this instance, which is behind, sync now? The coordinator may hold the call."""

    run_id: RunId
    instance: InstanceId
    version: int
    """The newest published one, which it would pull."""
    strategy: SyncAndMigStrategy
    mode: SyncMode
    wait_s: float = 10.0
    """How long the coordinator may hold the call until the moment is good."""


class SyncAnswer(Message):
    due: bool
    reason: Said = ""
    """For people, whichever it is."""
