"""What the coordinator knows at one moment, for those who watch it: the recorder and the metrics. It does not change
any more, so that other threads may read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...schemas.messages.fleet import FleetInstance
from .fleet import Fleet
from .waiting import RouteQueue


@dataclass(frozen=True, slots=True)
class Now:
    clock: float
    """As the fleet's."""
    wall: float
    """Seconds since 1970."""
    instances: Sequence[FleetInstance] = ()
    waiting: Sequence[tuple[str, int, int]] = ()
    """Run, version tag, and how many route calls wait."""
    placed: Mapping[str, int] = field(default_factory=dict)
    """Of each run: trajectories that were placed."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """Of each run that has routed: how."""


def look(fleet: Fleet, queue: RouteQueue, clock: float, wall: float) -> Now:
    return Now(
        clock=clock,
        wall=wall,
        instances=fleet.snapshot(clock).instances,
        waiting=tuple(queue.waiting()),
        placed=dict(fleet.placed),
        methods={run: method.value for run, method in fleet.methods.items()},
    )
