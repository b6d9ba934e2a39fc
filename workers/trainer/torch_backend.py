"""`model_engine: dp`: a causal LM of `transformers`, trained by PyTorch. `TrainerBackend` for it."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...activities.training.algorithms.algorithm import Need
from ...activities.training.algorithms.registry import algorithm_of
from ...activities.training.batch import TrainBatch
from ...schemas.errors import InvariantViolated
from ...schemas.messages.training import AdvantageStats, LogProbStats, UpdateStats
from ...schemas.weights import WeightProbe
from .backend import BackendRun
from .engine_gap import with_engine_gap
from .initial import initial_model
from .probe import weight_probe
from .snapshot import TorchSnapshot, read_snapshot, take_snapshot
from .state import TrainerState, initial_state, load_tokenizer
from .step import Advantages, OldLogProbs, advantages, old_log_probs, update
from .world import World

log = logging.getLogger(__name__)


class TorchBackend:
    def __init__(self, run: BackendRun, world: World, device: torch.device) -> None:
        self.run = run
        self.world = world
        self.state: TrainerState | None = None
        self._device = device
        self._tokenizer = load_tokenizer(run.config)
        self._reference: Any = None

    @property
    def version(self) -> int | None:
        return None if self.state is None else self.state.version

    @property
    def held(self) -> TrainerState:
        if self.state is None:
            raise InvariantViolated(f"run {self.run.run_id!r}: the trainer was asked for a state that it does not hold")
        return self.state

    @property
    def reference(self) -> Any:
        """The model of version 0, loaded when the algorithm first needs it; None when it does not."""
        if self._reference is None and Need.REFERENCE in algorithm_of(self.run.config).needs:
            self._reference = initial_model(self.run, self._tokenizer, self._device).requires_grad_(False)
        return self._reference

    def start(self) -> None:
        self.state = None  # Before the next one is loaded: there may not be room for two.
        self.state = initial_state(self.run.config, initial_model(self.run, self._tokenizer, self._device))

    def restore(self, folder: Path, version: int) -> None:
        self.state = None
        self.state = read_snapshot(folder, version, self.run.config, self._device)

    def step(self, buffer: int) -> "TorchStep":
        batch = dataclasses.replace(
            self.run.read_batch(buffer), mask_truncated=self.run.config.algorithm.mask_truncated
        )
        return TorchStep(self, buffer, batch)

    def probe(self) -> WeightProbe:
        return weight_probe(self.held.model, self._tokenizer, self.run.config)

    def export(self) -> Mapping[str, Tensor]:
        return self.held.published_tensors()

    def snapshot(self) -> TorchSnapshot:
        return take_snapshot(self.held, self._tokenizer)


class TorchStep:
    def __init__(self, backend: TorchBackend, buffer: int, batch: TrainBatch) -> None:
        self.buffer = buffer
        self._backend = backend
        self._batch = batch
        self._log_probs: OldLogProbs | None = None
        self._advantages: Advantages | None = None
        self._measured: LogProbStats | None = None
        self._update: UpdateStats | None = None

    @property
    def version(self) -> int:
        return self.buffer if self._update is None else self.buffer + 1

    def log_probs(self) -> LogProbStats:
        computed = self._with_log_probs()
        if self._update is not None:  # The weights that the gap is measured under are gone.
            return self._measured or computed.stats
        if self._measured is None:
            self._measured = with_engine_gap(
                computed.stats, self._backend.held, self._batch, computed.old, self._backend.run.published.lease
            )
        return self._measured

    def advantages(self) -> AdvantageStats:
        return self._with_advantages().stats

    def update(self) -> UpdateStats:
        if self._update is None:
            log_probs, of = self._with_log_probs(), self._with_advantages()
            # An update that fails half-way leaves weights of no version: they are given up before it begins.
            state, self._backend.state = self._backend.held, None
            self._update = update(state, self._batch, log_probs, of, self._backend.world)
            self._backend.state = state
            log.info(
                "run %s step %d: %d tokens, %.1f%% padding, log-probs %.3f s, update %.3f s",
                self._backend.run.run_id,
                self.buffer,
                log_probs.stats.tokens,
                100 * log_probs.plan.padding_share,
                log_probs.stats.seconds,
                self._update.seconds,
            )
        return self._update

    def _with_log_probs(self) -> OldLogProbs:
        if self._log_probs is None:
            self._log_probs = old_log_probs(self._backend.held, self._batch, self._backend.reference)
        return self._log_probs

    def _with_advantages(self) -> Advantages:
        if self._advantages is None:
            self._advantages = advantages(self._backend.run.config, self._batch)
        return self._advantages
