"""The trainer's ranks. Rank 0 hosts the activities; every reduction over a mini-batch goes through `World`, so that
code which runs in one process says already what is a sum over all of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...schemas.errors import ConfigError


@dataclass(frozen=True)
class World:
    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "World":
        """As `torchrun` describes it. Raises `ConfigError` for more than one rank."""
        size = int(environment.get("WORLD_SIZE", "1"))
        if size != 1:
            raise ConfigError(f"WORLD_SIZE={size}: the trainer runs in one process; allowed: 1, or start it plainly")
        return cls(rank=int(environment.get("RANK", "0")), size=size)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place; every rank calls it in the same order."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def total(self, count: float) -> float:
        """Sum of a count over all ranks."""
        return float(self.sum(torch.tensor(count, dtype=torch.float64))) if self.size > 1 else count
