"""What a routing policy is asked.

A policy only chooses; that an instance has room and is new enough was checked before (`selection.py`). It may choose
none: the request then waits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .....schemas.config import RoutingStrategy
from .....schemas.cost_model import CostModel
from .....schemas.ids import InstanceId

QUEUE_SHARE = 8
"""An engine of 64 slots has 8 requests at hand for those that end next: a slot would otherwise stay empty for the time
of a route call and a poll. No more, since what waits at one engine cannot be served by another."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance. A policy sees only those that serve the run at a version new enough and have room."""

    instance: InstanceId
    version: int
    load: int
    """Requests that it has or is about to get."""
    capacity: int
    """Slots."""
    serving: bool = True
    waiting: int = 0
    """Requests that have a slot and no room in the KV cache."""
    kv_tokens: int = 0
    """In its KV cache, or about to be."""
    kv_capacity: int = 0
    """0: not known."""
    cost: CostModel | None = None

    @property
    def free(self) -> int:
        """Slots."""
        return max(0, self.capacity - self.load)

    @property
    def room(self) -> int:
        """Free slots, and room in the queue."""
        return max(0, self.capacity + self.capacity // QUEUE_SHARE - self.load)

    @property
    def kv_usage(self) -> float:
        return self.kv_tokens / self.kv_capacity if self.kv_capacity else 0.0

    def holds(self, tokens: int, times: float = 1.0) -> bool:
        """Whether so many more tokens fit its KV cache, taken `times` its size. An idle instance holds whatever its
        engine was started for."""
        return not self.load or not self.kv_capacity or self.kv_tokens + tokens <= times * self.kv_capacity


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    candidates: Sequence[Candidate]
    """Not empty, in the order of their tiers, those of a tier sorted by instance."""
    last: InstanceId | None
    """The instance that the run's previous choice fell on; None for the first."""
    chance: float
    """From [0, 1), another one at each question. Nothing durable depends on a choice, so it needs no seed."""
    tiers: Sequence[Sequence[Candidate]] = ()
    """The candidates in groups of equal rank, the first to be preferred; empty: all are equal."""
    tokens: int = 1
    """Of the request: its context."""
    need: int = 1
    """KV tokens that the request is expected to hold."""
    overlap: Mapping[InstanceId, int] = field(default_factory=dict)
    """Tokens of the context that an instance is thought to have in its KV cache; none where it is not named."""
    strategy: RoutingStrategy = field(default_factory=RoutingStrategy)
    """The run's."""


RoutingPolicy = Callable[[RoutingSnapshot], Candidate | None]
"""One of the candidates, or None where the request had better wait."""
