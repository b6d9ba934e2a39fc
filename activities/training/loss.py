"""What every policy loss is made of, and how it becomes one number. Every argument holds one entry per trained token of
a mini-batch, in one flat dimension: there is no padding and no mask, so nothing masked can leak.

A mini-batch's loss is `sum(aggregation_weights * token_loss)`. The weights are fixed before the mini-batch is cut into
micro-batches, so the sum of the micro-batches' losses and gradients is exactly that of the whole.
"""

import torch
from torch import Tensor

from ...schemas.config import BatchAggMode, LossAggregation

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before `exp`: e^20 is far outside every clip range, and e^89 is infinite in float32."""


def importance_weights(old: Tensor, rollout: Tensor, threshold: float) -> Tensor:
    """min(exp(old - rollout), threshold): truncated importance sampling between trainer and engine (constant in the
    gradient). Exactly 1 where the engine gave no finite log-prob; such tokens are counted and not trained."""
    gap = torch.nan_to_num(old - rollout, nan=0.0, posinf=0.0, neginf=0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap.exp().clamp(max=threshold).detach()


def k3(new: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - 1 - d with d = reference - new: an unbiased, never negative estimate of KL(new || reference)
    (http://joschu.net/blog/kl-approx.html)."""
    gap = (reference - new).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap.exp() - 1 - gap


def sequence_shares(sequences: Tensor, episodes: Tensor, mode: BatchAggMode) -> Tensor:
    """Of every trained token: what its sequence counts for in a mean over sequences. `sequences` tells for every token
    whose it is, `episodes` for every sequence of which episode it is one."""
    if mode is BatchAggMode.TRAJECTORY:
        return torch.ones(sequences.shape, device=sequences.device)
    trained, owner = sequences.unique(return_inverse=True)
    _, attempt, together = episodes[trained].unique(return_inverse=True, return_counts=True)
    return (1.0 / together)[attempt][owner]


def aggregation_units(sequences: Tensor, shares: Tensor, mode: LossAggregation) -> float:
    """What the loss is a mean over: trained tokens, or sequences with at least one trained token, each counted as its
    share says. Several ranks add their units before `aggregation_weights` uses the total."""
    if mode is LossAggregation.TOKEN_MEAN:
        return float(shares.sum(dtype=torch.float64))
    trained, owner = sequences.unique(return_inverse=True)
    of_sequences = torch.zeros(trained.shape, dtype=torch.float64, device=shares.device)
    return float(of_sequences.scatter_(0, owner, shares.double()).sum())


def aggregation_weights(sequences: Tensor, shares: Tensor, mode: LossAggregation, units: float) -> Tensor:
    """Factor of every token's loss; `units` is the mini-batch's total of `aggregation_units`."""
    if mode is not LossAggregation.SEQ_MEAN_TOKEN_MEAN:
        return shares / units
    _, owner, tokens = sequences.unique(return_inverse=True, return_counts=True)
    return shares / (units * tokens)[owner]
