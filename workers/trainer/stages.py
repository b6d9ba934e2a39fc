"""The stages of a step, each idempotent by (run, buffer), and the recovery that makes them so.

Called from one thread only (`host.py`). A stage first brings the state to where its buffer needs it:

- at version `buffer`: the stage works, after the stages that come before it if they were not done yet;
- at version `buffer + 1` with this buffer's results in memory: the stored result is returned;
- anything else, or no state at all (a restarted process, a failed update): the newest complete checkpoint that is old
  enough, or the initial model, is loaded, and the stored batches are replayed up to version `buffer`.

A replay is the same functions on the same rows, so on the same hardware the weights are the same bit for bit. It
publishes nothing and saves nothing.

A checkpoint is written beside the stages that follow it. One that could not be written is written again by the next
stage, whatever that is: it fails with the reason, and works when it is repeated after the reason is gone.
"""

import contextlib
import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import Engine

from ...activities.training.algorithms.algorithm import Need
from ...activities.training.algorithms.registry import algorithm_of
from ...activities.training.batch import TrainBatch
from ...schemas.config import RunConfig
from ...schemas.errors import InstanceBusy, ModelError, WeightsRefused
from ...schemas.ids import RunId
from ...schemas.messages.training import (
    AdvantageStats,
    CheckpointResult,
    LogProbStats,
    PublishResult,
    UpdateStats,
)
from ...schemas.stack import Stack
from ...schemas.weights import WeightProbe
from .batches import read_batch
from .checkpoints import Checkpoints
from .engine_gap import with_engine_gap
from .probe import weight_probe
from .publisher import Publisher
from .runs import AdmittedRun, admitted_run, run_ended
from .shapes import difference, shapes_of
from .state import TrainerState, initial_state, load_model, load_tokenizer
from .step import Advantages, OldLogProbs, advantages, old_log_probs, update
from .world import World

log = logging.getLogger(__name__)

SAME_MODEL_TOLERANCE = 1e-3
"""Largest |log-prob difference| on the probe between `model.path` now and when version 0 was published: above what
another processor may cause, below any other model."""


@dataclass
class Step:
    """What is known of one buffer's step so far."""

    buffer: int
    batch: TrainBatch
    log_probs: OldLogProbs | None = None
    advantages: Advantages | None = None
    update: UpdateStats | None = None
    measured: LogProbStats | None = None
    """Of the log-probs, with the gap between engine and trainer; a replay does not measure it."""

    @property
    def version(self) -> int:
        """Of the state that belongs to it."""
        return self.buffer if self.update is None else self.buffer + 1


@dataclass
class OpenRun:
    """The run that this process serves."""

    run_id: RunId
    admitted: AdmittedRun
    tokenizer: Any
    publisher: Publisher
    checkpoints: Checkpoints
    state: TrainerState | None = None
    step: Step | None = None
    reference: Any = None
    """The model of version 0, loaded when the KL loss first needs it."""
    notes: tuple[str, ...] = ()
    """What was noteworthy when the state was last rebuilt; told with the version that is published next."""

    @property
    def config(self) -> RunConfig:
        return self.admitted.config


class Stages:
    def __init__(self, stack: Stack, store: Engine, world: World, device: torch.device) -> None:
        self._stack = stack
        self._store = store
        self._world = world
        self._device = device
        self._run: OpenRun | None = None

    # --- the stages ------------------------------------------------------------------------------------------------

    def open(self, run_id: RunId) -> PublishResult:
        """Publish version 0, unless it is published already; then see that the newest version is whole on the disk,
        and write it again if it is not: instances are about to pull it."""
        held = self._run
        if held is not None and held.run_id == run_id and held.admitted != admitted_run(self._store, run_id):
            self._release()  # The run was deleted, and another one was admitted under its name.
        run = self._opened(run_id)
        published = run.publisher.published(0)
        if published is None:
            state = self._at_version(run, 0)
            return run.publisher.publish(state, weight_probe(state.model, run.tokenizer, run.config))
        newest = run.publisher.newest()
        damage = "" if newest is None else run.publisher.damage(newest)
        if newest is None or not damage:
            return published
        log.warning("%s; it is rebuilt", damage)
        state = self._at_version(run, newest)
        run.publisher.repair(state, weight_probe(state.model, run.tokenizer, run.config))
        return published.model_copy(update={"notes": (*published.notes, f"rebuilt: {damage}")})

    def log_probs(self, run_id: RunId, buffer: int) -> LogProbStats:
        run = self._opened(run_id)
        step = self._step(run, buffer)
        computed = self._with_log_probs(run, step)
        if step.measured is None:
            assert run.state is not None
            step.measured = computed.stats
            if step.update is None:
                step.measured = with_engine_gap(
                    computed.stats, run.state, step.batch, computed.old, run.publisher.lease
                )
        return step.measured

    def advantages(self, run_id: RunId, buffer: int) -> AdvantageStats:
        run = self._opened(run_id)
        return self._with_advantages(run, self._step(run, buffer)).stats

    def update(self, run_id: RunId, buffer: int) -> UpdateStats:
        run = self._opened(run_id)
        return self._updated(run, self._step(run, buffer))

    def publish(self, run_id: RunId, buffer: int) -> PublishResult:
        """Version `buffer + 1`. The state is brought there in any case: the next step starts from it."""
        state = self._after(run_id, buffer)
        run = self._opened(run_id)
        probe = weight_probe(state.model, run.tokenizer, run.config)
        published = run.publisher.published(state.version)
        if published is None:
            published = run.publisher.publish(state, probe)
        else:
            self._compare(run, state.version, probe)
        return published.model_copy(update={"notes": run.notes})

    def checkpoint(self, run_id: RunId, buffer: int, wait: bool = False) -> CheckpointResult:
        """With `wait` it is complete on disk, else its state is copied and it is being written."""
        run = self._opened(run_id)
        stored = run.checkpoints.find(buffer + 1, wait)
        return stored or run.checkpoints.save(self._after(run_id, buffer), wait)

    def close(self, run_id: RunId) -> None:
        if self._run is not None and self._run.run_id == run_id:
            self._release()
            log.info("run %s: closed", run_id)

    def shutdown(self) -> None:
        """The process ends in order: a checkpoint in progress is completed."""
        if self._run is not None:
            self._release()

    # --- what a stage builds on ------------------------------------------------------------------------------------

    def _opened(self, run_id: RunId) -> OpenRun:
        """Raises `InstanceBusy` while another run that has not ended holds the trainer."""
        if self._run is not None and self._run.run_id != run_id:
            if not run_ended(self._store, self._run.run_id):
                raise InstanceBusy(f"the trainer serves run {self._run.run_id!r}; run {run_id!r} must wait for its end")
            self._release()
        if self._run is None:
            admitted = admitted_run(self._store, run_id)
            tokenizer = load_tokenizer(admitted.config)
            self._run = OpenRun(
                run_id,
                admitted,
                tokenizer,
                Publisher(self._store, self._stack.weights_dir, run_id, admitted.config),
                Checkpoints(self._store, self._stack.checkpoints_dir, run_id, admitted, tokenizer),
            )
            log.info("run %s: opened", run_id)
        self._run.checkpoints.check()
        return self._run

    def _release(self) -> None:
        run, self._run = self._run, None
        assert run is not None
        run.checkpoints.close()

    def _step(self, run: OpenRun, buffer: int) -> Step:
        """The step of `buffer`, with the state before or just after its update."""
        step, state = run.step, run.state
        if step is not None and step.buffer == buffer and state is not None and state.version == step.version:
            return step
        if step is not None and step.buffer != buffer:
            run.notes = ()  # Told with the step before.
        self._at_version(run, buffer)
        run.step = Step(buffer, self._batch(run, buffer))
        return run.step

    def _batch(self, run: OpenRun, buffer: int) -> TrainBatch:
        batch = read_batch(self._store, run.run_id, buffer)
        return dataclasses.replace(batch, mask_truncated=run.config.algorithm.mask_truncated)

    def _with_log_probs(self, run: OpenRun, step: Step) -> OldLogProbs:
        if step.log_probs is None:
            assert run.state is not None
            step.log_probs = old_log_probs(run.state, step.batch, self._reference(run))
        return step.log_probs

    def _with_advantages(self, run: OpenRun, step: Step) -> Advantages:
        if step.advantages is None:
            step.advantages = advantages(run.config, step.batch)
        return step.advantages

    def _updated(self, run: OpenRun, step: Step) -> UpdateStats:
        if step.update is None:
            log_probs, of = self._with_log_probs(run, step), self._with_advantages(run, step)
            # An update that fails half-way leaves weights of no version: they are given up before it begins.
            state, run.state = run.state, None
            assert state is not None
            step.update = update(state, step.batch, log_probs, of, self._world)
            run.state = state
            log.info(
                "run %s step %d: %d tokens, %.1f%% padding, log-probs %.3f s, update %.3f s",
                run.run_id,
                step.buffer,
                log_probs.stats.tokens,
                100 * log_probs.plan.padding_share,
                log_probs.stats.seconds,
                step.update.seconds,
            )
        return step.update

    def _after(self, run_id: RunId, buffer: int) -> TrainerState:
        """The state of version `buffer + 1`."""
        run = self._opened(run_id)
        if run.state is None or run.state.version != buffer + 1:
            self._updated(run, self._step(run, buffer))
        assert run.state is not None
        return run.state

    def _reference(self, run: OpenRun) -> Any:
        if run.reference is None and Need.REFERENCE in algorithm_of(run.config).needs:
            run.reference = self._initial_model(run).requires_grad_(False)
        return run.reference

    # --- recovery --------------------------------------------------------------------------------------------------

    def _at_version(self, run: OpenRun, version: int) -> TrainerState:
        """The state at `version`, rebuilt unless it is there."""
        if run.state is not None and run.state.version == version:
            return run.state
        run.state = run.step = None
        run.state, run.notes = run.checkpoints.load(version, self._device)
        if run.state is None:
            run.state = initial_state(run.config, self._initial_model(run))
        if run.state.version < version:
            log.info("run %s: replaying batches %d to %d", run.run_id, run.state.version, version - 1)
        for buffer in range(run.state.version, version):
            self._updated(run, Step(buffer, self._batch(run, buffer)))
        self._compare(run, version, weight_probe(run.state.model, run.tokenizer, run.config))
        return run.state

    def _initial_model(self, run: OpenRun) -> Any:
        """Raises `ModelError` when `model.path` no longer holds what was published as version 0."""
        model = load_model(Path(run.config.model.path), run.config, self._device)
        gap = self._probe_gap(run, 0, weight_probe(model, run.tokenizer, run.config))
        if gap is not None and gap > SAME_MODEL_TOLERANCE:
            differs = self._shapes_differ(run, model)
            raise ModelError(
                f"model.path={run.config.model.path!r} is not the model that run {run.run_id!r} began with: "
                f"{differs or f'log-probs of its probe differ by up to {gap:.3g}'}. Put the original back"
            )
        return model

    def _shapes_differ(self, run: OpenRun, model: Any) -> str | None:
        """From version 0, where it can still be read; a tied tensor is published once."""
        with contextlib.suppress(WeightsRefused), run.publisher.lease(0) as published:
            found = {name: s for name, s in shapes_of(model.state_dict()).items() if name in published.tensors}
            return difference(found, shapes_of(published.tensors))
        return None

    def _compare(self, run: OpenRun, version: int, probe: WeightProbe) -> None:
        """A rebuilt version should be the published one; another processor may round differently, and that is said."""
        gap = self._probe_gap(run, version, probe)
        if gap:
            log.warning(
                "run %s: rebuilt version %d differs from the published one by up to %.3g in log-probs of the probe "
                "(other hardware or libraries?); engines keep the published one",
                run.run_id,
                version,
                gap,
            )

    def _probe_gap(self, run: OpenRun, version: int, probe: WeightProbe) -> float | None:
        """Largest |log-prob difference| to the published version; None when it is not published."""
        published = run.publisher.probe(version)
        if published is None:
            return None
        if published.token_ids != probe.token_ids:
            return float("inf")
        return max(abs(a - b) for a, b in zip(published.logprobs, probe.logprobs, strict=True))
