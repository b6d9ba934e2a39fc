"""One step's computations on a state and a batch. A replay calls the same functions as a normal step."""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...activities.training.algorithms.algorithm import Algorithm, Tokens
from ...activities.training.algorithms.registry import algorithm_of
from ...activities.training.batch import TrainBatch
from ...activities.training.logprobs import entropies, log_prob_gap, micro_batch_logits, target_log_probs
from ...activities.training.loss import aggregation_units, aggregation_weights, importance_weights, sequence_shares
from ...activities.training.packing import BatchPlan, MicroBatch, MiniBatch, plan_batch
from ...activities.training.schedule import learning_rate
from ...schemas.config import RunConfig
from ...schemas.errors import FatalError
from ...schemas.messages.training import AdvantageStats, LogProbStats, UpdateStats
from .state import TrainerState
from .world import World


@dataclass(frozen=True)
class OldLogProbs:
    """Of every trainable token, before the update."""

    plan: BatchPlan
    old: Tensor
    reference: Tensor | None
    """Under version 0; null without KL loss."""
    entropy: float
    stats: LogProbStats


@dataclass(frozen=True)
class Advantages:
    of_sequences: Tensor
    """float32; 0 for sequences without a reward, none of whose tokens is trainable."""
    stats: AdvantageStats


class Sums(NamedTuple):
    """Sums over trained tokens, for the step's metrics."""

    loss: Tensor
    clipped: Tensor
    ratio: Tensor
    kl: Tensor
    importance: Tensor


def old_log_probs(state: TrainerState, batch: TrainBatch, reference: Any) -> OldLogProbs:
    """`reference` is the model of version 0, or None without KL loss."""
    began = time.perf_counter()
    actor, temperature = state.config.actor, state.config.rollout.temperature
    plan = plan_batch(batch, actor.ppo_mini_batch_size, actor.ppo_max_token_len_per_gpu, state.device)
    old = torch.zeros(len(batch.tokens), device=state.device)
    version_0 = None if reference is None else torch.zeros_like(old)
    entropy = torch.zeros((), device=state.device)
    with torch.no_grad(), state.precision():
        for micro in _micro_batches(plan):
            logits = micro_batch_logits(state.model, micro, temperature)
            old[micro.tokens] = target_log_probs(logits, micro.targets)
            entropy += entropies(logits).sum()
            if version_0 is not None:
                logits = micro_batch_logits(reference, micro, temperature)
                version_0[micro.tokens] = target_log_probs(logits, micro.targets)
    gap = log_prob_gap(old, batch.tokens.rollout.to(state.device))
    stats = LogProbStats(
        tokens=len(batch.tokens),
        gap_mean_abs=gap.mean_abs,
        gap_max_abs=gap.max_abs,
        gap_k3=gap.k3,
        untrainable_tokens=batch.tokens.untrainable,
        masked_trajectories=batch.masked,
        padding_share=plan.padding_share,
        seconds=time.perf_counter() - began,
    )
    return OldLogProbs(plan, old, version_0, float(entropy) / max(len(batch.tokens), 1), stats)


def advantages(config: RunConfig, batch: TrainBatch) -> Advantages:
    """Of every episode, given to all its sequences."""
    rewards = [first.reward for first in batch.firsts]
    groups = [first.group for first in batch.firsts]
    values = algorithm_of(config).advantages(rewards, groups)
    known = torch.tensor([value for value in values if value is not None], dtype=torch.float64)
    stats = AdvantageStats(
        mean=float(known.mean()) if len(known) else 0.0,
        std=float(known.std()) if len(known) > 1 else 0.0,
        zero_share=float((known == 0).double().mean()) if len(known) else 0.0,
    )
    of_sequences = [values[episode] or 0.0 for episode in batch.episodes]
    return Advantages(torch.tensor(of_sequences, dtype=torch.float32), stats)


def update(state: TrainerState, batch: TrainBatch, log_probs: OldLogProbs, of: Advantages, world: World) -> UpdateStats:
    """`ppo_epochs` passes of optimizer steps over the mini-batches; `state` then is one version newer."""
    began = time.perf_counter()
    optim = state.config.actor.optim
    lr = learning_rate(optim.lr, optim.lr_warmup_steps, state.version)
    for group in state.optimizer.param_groups:
        group["lr"] = lr
    algorithm = algorithm_of(state.config)
    columns = _columns(state, batch, log_probs, of)
    losses: list[Tensor] = []
    norms: list[Tensor] = []
    sums = Sums(*torch.zeros(5, device=state.device))
    trained = 0.0
    for _ in range(state.config.actor.ppo_epochs):
        for mini in log_probs.plan.mini_batches:
            tokens = world.total(mini.tokens.numel())
            if not tokens:
                continue  # Nothing to learn from: an optimizer step would only decay weights and move by momentum.
            mini_sums, norm = _optimizer_step(state, algorithm, mini, columns, world)
            losses.append(mini_sums.loss)
            norms.append(norm)
            sums = Sums(*(total + part for total, part in zip(sums, mini_sums, strict=True)))
            trained += tokens
    state.version += 1
    steps, tokens = max(len(losses), 1), max(trained, 1.0)
    return UpdateStats(
        loss=float(sums.loss) / steps,
        grad_norm=float(sum(norms)) / steps,
        clip_share=float(sums.clipped) / tokens,
        ratio_mean=float(sums.ratio) / tokens if trained else 1.0,
        kl=float(sums.kl) / tokens,
        entropy=log_probs.entropy,
        lr=lr,
        is_weight_mean=float(sums.importance) / tokens if trained else 1.0,
        optimizer_steps=len(losses),
        seconds=time.perf_counter() - began,
    )


class Columns(NamedTuple):
    """Per trainable token of the batch, on the model's device."""

    sequence: Tensor
    share: Tensor
    """Of its sequence in means over sequences."""
    advantage: Tensor
    old: Tensor
    reference: Tensor | None
    importance: Tensor | None
    """Truncated importance weight; null without correction."""

    def of(self, micro: MicroBatch, new: Tensor) -> Tokens:
        """Those of a micro-batch."""
        at = micro.tokens
        reference = None if self.reference is None else self.reference[at]
        importance = None if self.importance is None else self.importance[at]
        return Tokens(new, self.old[at], self.advantage[at], self.sequence[at], reference, importance)


def _columns(state: TrainerState, batch: TrainBatch, log_probs: OldLogProbs, of: Advantages) -> Columns:
    correction = state.config.algorithm.rollout_correction
    importance = None
    if correction.rollout_is is not None:
        rollout = batch.tokens.rollout.to(state.device)
        importance = importance_weights(log_probs.old, rollout, correction.rollout_is_threshold)
    sequence = batch.tokens.sequence
    share = sequence_shares(sequence, torch.tensor(batch.episodes), state.config.psrl.agentic_rl.batch_agg_mode)
    advantage = of.of_sequences[sequence]
    sequence, share, advantage = (column.to(state.device) for column in (sequence, share, advantage))
    return Columns(sequence, share, advantage, log_probs.old, log_probs.reference, importance)


def _optimizer_step(
    state: TrainerState, algorithm: Algorithm, mini: MiniBatch, columns: Columns, world: World
) -> tuple[Sums, Tensor]:
    """Accumulates gradients over the micro-batches, then steps. Also returns the gradient norm before clipping."""
    mode = state.config.actor.loss_agg_mode
    owners, shares = columns.sequence[mini.tokens], columns.share[mini.tokens]
    weights = torch.zeros_like(columns.old)
    units = world.total(aggregation_units(owners, shares, mode))
    weights[mini.tokens] = aggregation_weights(owners, shares, mode, units)
    state.optimizer.zero_grad(set_to_none=True)
    sums = Sums(*torch.zeros(5, device=state.device))
    for micro in mini.micro_batches:
        loss, parts = _micro_batch_loss(state, algorithm, micro, columns, weights)
        loss.backward()
        sums = Sums(*(total + part for total, part in zip(sums, parts, strict=True)))
    for parameter in state.model.parameters():
        if parameter.grad is not None:
            world.sum(parameter.grad)
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), state.config.actor.grad_clip)
    if not norm.isfinite():
        raise FatalError(
            f"the gradient norm of the step from version {state.version} is {float(norm)}, the loss "
            f"{float(sums.loss)}: lower actor.optim.lr={state.config.actor.optim.lr} or check the rewards"
        )
    state.optimizer.step()
    return sums, norm


def _micro_batch_loss(
    state: TrainerState, algorithm: Algorithm, micro: MicroBatch, columns: Columns, weights: Tensor
) -> tuple[Tensor, Sums]:
    """Its share of the mini-batch's loss, and the sums for the metrics."""
    with state.precision():
        logits = micro_batch_logits(state.model, micro, state.config.rollout.temperature)
    token = algorithm.token_loss(columns.of(micro, target_log_probs(logits, micro.targets)))
    loss = (weights[micro.tokens] * token.loss).sum()
    measured = (token.clipped, token.ratio, token.kl, token.importance)
    return loss, Sums(loss.detach(), *(values.sum() for values in measured))


def _micro_batches(plan: BatchPlan) -> list[MicroBatch]:
    return [micro for mini in plan.mini_batches for micro in mini.micro_batches]
