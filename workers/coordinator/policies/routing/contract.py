"""What a routing policy is asked.

A policy only chooses; that an instance has room and is new enough was checked before (`fleet.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .....schemas.ids import InstanceId


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that serves the run at a version new enough and has room."""

    instance: InstanceId
    version: int
    load: int
    capacity: int


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    candidates: Sequence[Candidate]
    """Not empty, sorted by instance."""
    last: InstanceId | None
    """The instance that the run's previous choice fell on; None for the first."""
    chance: float
    """From [0, 1), another one at each question. Nothing durable depends on a choice, so it needs no seed."""


RoutingPolicy = Callable[[RoutingSnapshot], Candidate]
"""One of the candidates."""
