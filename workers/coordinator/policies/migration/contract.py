"""What a migration policy is asked, and what it answers.

A policy only names requests. The donor's host ends their segments, their tokens stay stored, and each is routed anew
with its prefix; the receiver is where room is expected, not a promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .....schemas.ids import InstanceId
from ..load import InstanceLoad


@dataclass(frozen=True, slots=True)
class MigrationSnapshot:
    instances: Sequence[InstanceLoad]
    """All of the run, sorted by name."""
    queued: Sequence[int] = ()
    """Version tags of the trajectories that wait for room."""


@dataclass(frozen=True, slots=True)
class Migration:
    donor: InstanceId
    receiver: InstanceId
    requests: Sequence[str]
    """Not empty, without one twice; all of them in the donor's engine."""
    reason: str
    """For people."""


MigrationPolicy = Callable[[MigrationSnapshot], Migration | None]
"""`None`: nothing moves."""
