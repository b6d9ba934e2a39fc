"""The coordinator's view of the fleet, for people and the CLI."""

from .base import Message
from .rollout import InstanceReport


class FleetInstance(Message):
    """One instance that reported lately."""

    report: InstanceReport
    load: int
    """Running, waiting, and routed to it but not yet received."""
    age_s: float
    """Since its newest report."""


class FleetSnapshot(Message):
    instances: tuple[FleetInstance, ...] = ()
