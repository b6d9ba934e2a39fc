"""How busy an instance is, for policies that weigh instances against each other, and what they weigh by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....schemas.config.sync_and_mig import LoadIndicator
from ....schemas.cost_model import CostModel
from ....schemas.ids import InstanceId


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """One request in an engine."""

    request_id: str
    """The engine's own."""
    prompt: int
    """Tokens of its context when its turn began."""
    sampled: int
    """Tokens of the turn so far."""

    @property
    def tokens(self) -> int:
        """In the KV cache."""
        return self.prompt + self.sampled


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    instance: InstanceId
    version: int
    serving: bool
    """Requests are admitted. One that does not serve starts or syncs, and is taken to come back at the newest."""
    slots: int
    """Requests that run at the same time."""
    lost: bool = False
    """It does not serve, and nobody knows when it will: its engine died, or its weights cannot be trusted."""
    running: int = 0
    waiting: int = 0
    """Beyond the slots, and those on their way."""
    throughput: float = 0.0
    """Tokens per second."""
    kv_usage: float = 0.0
    """Share of the KV cache."""
    kv_capacity: int = 0
    """Tokens."""
    requests: Sequence[RequestLoad] = ()
    """Of those in the engine, in the order in which they came: `slots` of them run."""
    pull_s: float = 0.0
    """Seconds of its last pull."""
    cost: CostModel | None = None

    @property
    def requests_at_hand(self) -> int:
        return self.running + self.waiting

    @property
    def free(self) -> int:
        return max(0, self.slots - self.requests_at_hand)


INDICATORS: Mapping[LoadIndicator, Callable[[InstanceLoad], float]] = {
    LoadIndicator.REQUEST_NUM: lambda load: load.running,
    LoadIndicator.THROUGHPUT: lambda load: load.throughput if load.running else 0.0,
    LoadIndicator.KV_CACHE: lambda load: load.kv_usage,
}
"""The higher, the busier. One that runs nothing is at 0 by each: a rate is of the last second."""
