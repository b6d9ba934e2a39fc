"""Engine against trainer: the same tokens scored twice under the same weights.

The gap between old log-probs and the engine's also holds what the policy has learnt since the tokens were sampled. Here
every token is scored with the version that sampled it: those of the current version by the old log-probs, a sample of
each older one with that version's published weights. What is left is the numerical difference of two implementations,
which importance sampling cannot tell from a wrong weight sync. Called by the log-prob stage, never by a replay.
"""

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...activities.training.batch import SampledSequence, TrainBatch
from ...activities.training.logprobs import micro_batch_logits, target_log_probs
from ...activities.training.packing import plan_batch
from ...activities.weights.transport import Lease
from ...schemas.errors import WeightsRefused
from ...schemas.messages.training import LogProbStats
from .state import TrainerState

log = logging.getLogger(__name__)

LeaseVersion = Callable[[int], Lease]
"""A published version. Raises `WeightsRefused` when it is no longer kept, or damaged by now."""


def with_engine_gap(
    stats: LogProbStats, state: TrainerState, batch: TrainBatch, old: Tensor, lease: LeaseVersion
) -> LogProbStats:
    """`stats` with the engine gap filled in."""
    versions = _versions(batch)
    rollout = batch.tokens.rollout
    gaps = [(old.cpu() - rollout)[versions == state.version]]
    sample = state.config.trainer.gap_sample
    for version in sorted({int(v) for v in versions.unique()} - {state.version}) if sample else []:
        try:
            with lease(version) as leased:
                gaps.append(_gap_under(state, _sampled_by(batch, version, sample), version, leased.tensors))
        except WeightsRefused as error:
            # A measurement never ends a run.
            log.warning("the engine gap leaves out tokens of version %d: %s", version, error)
    gap = torch.cat(gaps).abs().double()
    if not gap.numel():
        return stats
    return stats.model_copy(
        update={
            "engine_gap_mean_abs": float(gap.mean()),
            "engine_gap_max_abs": float(gap.max()),
            "engine_gap_tokens": gap.numel(),
        }
    )


def _versions(batch: TrainBatch) -> Tensor:
    """The version that sampled each trainable token."""
    tokens = batch.tokens
    found = [
        batch.sequences[sequence].versions[position - batch.sequences[sequence].prompt_tokens]
        for sequence, position in zip(tokens.sequence.tolist(), tokens.position.tolist(), strict=True)
    ]
    return torch.stack(found) if found else torch.empty(0, dtype=torch.int32)


def _sampled_by(batch: TrainBatch, version: int, limit: int) -> TrainBatch:
    """The first `limit` sequences with tokens of that version."""
    chosen: list[SampledSequence] = [s for s in batch.sequences if bool((s.versions == version).any())]
    return TrainBatch(tuple(chosen[:limit]))


def _gap_under(state: TrainerState, batch: TrainBatch, version: int, tensors: Mapping[str, Tensor]) -> Tensor:
    model = state.with_published(tensors)
    plan = plan_batch(batch, None, state.config.actor.ppo_max_token_len_per_gpu, state.device)
    scored = torch.zeros(len(batch.tokens), device=state.device)
    with torch.no_grad(), state.precision():
        for mini in plan.mini_batches:
            for micro in mini.micro_batches:
                logits = micro_batch_logits(model, micro, state.config.rollout.temperature)
                scored[micro.tokens] = target_log_probs(logits, micro.targets)
    return (scored.cpu() - batch.tokens.rollout)[_versions(batch) == version]
