"""A trainer state as it was at one version, in host memory: a checkpoint is written from it while training goes on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...schemas.messages.training import DataPosition
from .state import TrainerState


@dataclass(frozen=True)
class Snapshot:
    model: Any
    """Asked for its configuration and how its tensors are named on disk; its weights may be newer."""
    tensors: dict[str, Tensor]
    trainer: dict[str, Any]
    """Optimizer, random numbers, version. The learning rate is a function of the version: there is no scheduler whose
    state could be lost."""
    position: DataPosition

    @property
    def version(self) -> int:
        return self.position.version

    @property
    def nbytes(self) -> int:
        distinct = {t.data_ptr(): t.nbytes for t in (*self.tensors.values(), *_tensors(self.trainer))}
        return sum(distinct.values())


def take_snapshot(state: TrainerState, position: DataPosition) -> Snapshot:
    """Copies every tensor once: those that are tied stay tied. Nothing in the result changes afterwards."""
    copies: dict[int, Tensor] = {}
    trainer = {
        "version": state.version,
        "optimizer": _copied(state.optimizer.state_dict(), copies),
        "rng": torch.get_rng_state(),
        "rng_cuda": torch.cuda.get_rng_state(state.device) if state.device.type == "cuda" else None,
    }
    return Snapshot(state.model, _copied(state.model.state_dict(), copies), trainer, position)


def _copied(value: Any, copies: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        if value.data_ptr() not in copies or not value.nbytes:
            copies[value.data_ptr()] = value.detach().to("cpu", copy=True)
        return copies[value.data_ptr()]
    if isinstance(value, dict):
        return {key: _copied(item, copies) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item, copies) for item in value]
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
