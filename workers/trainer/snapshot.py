"""A torch trainer's state as it was at one version, in host memory: a checkpoint is written from it, and read again.

A plain `transformers` folder (safetensors, config, tokenizer) with one file more: `trainer_state.pt` (optimizer, random
numbers, version).
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...activities.weights.names import by_file_name, describe, shapes_of
from ...schemas.config import RunConfig
from ...schemas.errors import ModelError
from .shapes import difference
from .state import TrainerState, load_model, make_optimizer

STATE_FILE = "trainer_state.pt"


@dataclass(frozen=True)
class TorchSnapshot:
    """`backend.Snapshot`."""

    version: int
    model: Any
    """Asked for its configuration and how its tensors are named on disk; its weights may be newer."""
    tokenizer: Any
    tensors: dict[str, Tensor]
    trainer: dict[str, Any]
    """Optimizer, random numbers, version. The learning rate is a function of the version: there is no scheduler whose
    state could be lost."""

    @property
    def nbytes(self) -> int:
        distinct = {t.data_ptr(): t.nbytes for t in (*self.tensors.values(), *_tensors(self.trainer))}
        return sum(distinct.values())

    def write(self, folder: Path) -> None:
        # A copy of the mapping: the writer empties it shard by shard, and a failed write is repeated.
        self.model.save_pretrained(folder, state_dict=dict(self.tensors))
        self.tokenizer.save_pretrained(folder)
        with (folder / STATE_FILE).open("wb") as stream:  # An open file: its errors keep their number.
            torch.save(self.trainer, stream)


def take_snapshot(state: TrainerState, tokenizer: Any) -> TorchSnapshot:
    """Copies every tensor once: those that are tied stay tied. Nothing in the result changes afterwards."""
    copies: dict[int, Tensor] = {}
    trainer = {
        "version": state.version,
        "optimizer": _copied(state.optimizer.state_dict(), copies),
        "rng": torch.get_rng_state(),
        "rng_cuda": torch.cuda.get_rng_state(state.device) if state.device.type == "cuda" else None,
    }
    return TorchSnapshot(state.version, state.model, tokenizer, _copied(state.model.state_dict(), copies), trainer)


def read_snapshot(folder: Path, version: int, config: RunConfig, device: torch.device) -> TrainerState:
    """What `TorchSnapshot.write` left in the folder. Raises `ModelError` when `model.path` has other shapes."""
    model, _ = load_model(folder, config, device)
    differs = difference(describe(config.model).shapes, shapes_of(by_file_name(model, model.state_dict())))
    if differs is not None:
        raise ModelError(
            f"model.path={config.model.path!r} does not fit {folder}: {differs} as in the checkpoint. "
            "Put the model back that the run began with"
        )
    optimizer = make_optimizer(model, config)
    try:
        stored = torch.load(folder / STATE_FILE, map_location=device, weights_only=True)
        optimizer.load_state_dict(stored["optimizer"])
    except (ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ModelError(f"{folder / STATE_FILE} does not fit the model: {error}") from error
    torch.set_rng_state(stored["rng"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(stored["rng_cuda"].cpu(), device)
    return TrainerState(config, model, optimizer, version)


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
