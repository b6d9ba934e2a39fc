"""The trainer backends there are, by the value of `model_engine`; made once per process, for all runs it will serve."""

from collections.abc import Mapping

import torch

from ...schemas.config import ModelEngine
from .backend import OpenBackend
from .torch_backend import TorchBackend
from .world import World

Backends = Mapping[ModelEngine, OpenBackend]


def backends(world: World, device: torch.device) -> Backends:
    return {ModelEngine.DP: lambda run: TorchBackend(run, world, device)}
