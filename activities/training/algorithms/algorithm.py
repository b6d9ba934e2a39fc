"""What an algorithm is: advantages of trajectories, and a loss of every trained token.

All of it is pure. A micro-batch holds whole sequences, so a loss may look at a token's whole sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from ....schemas.config import ActorSection, AlgorithmSection, RunConfig
from ..loss import MAX_LOG_RATIO, k3


class Need(StrEnum):
    """Models that the trainer must hold beside the policy."""

    REFERENCE = "reference"
    """Version 0, whose log-probs every trained token then has."""


class Tokens(NamedTuple):
    """The trained tokens of a micro-batch, one entry per token in every column."""

    new: Tensor
    """Log-prob under the weights that are being trained; the only column with a gradient."""
    old: Tensor
    """Before the step."""
    advantage: Tensor
    sequence: Tensor
    """Number of the sequence it belongs to."""
    reference: Tensor | None
    """Under version 0; null unless needed."""
    importance: Tensor | None
    """Truncated weight for engine against trainer; null without correction."""


class PolicyLoss(NamedTuple):
    """What a loss mode gives for every token, without correction and KL term."""

    loss: Tensor
    ratio: Tensor
    """Of new to old, as the mode compares them; no gradient."""
    clipped: Tensor
    """Whether the clip took effect: the token then has no gradient."""


class TokenLoss(NamedTuple):
    """What is minimised, and what it consists of, for the step's metrics."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor
    importance: Tensor


Estimator = Callable[[Sequence[float | None], Sequence[int], AlgorithmSection], list[float | None]]
"""From rewards and the group of each to advantages: None where the reward is missing or not finite."""
Loss = Callable[[Tokens, ActorSection], PolicyLoss]


@dataclass(frozen=True)
class Algorithm:
    """As a run's configuration chose it (`registry.algorithm_of`)."""

    config: RunConfig
    estimator: Estimator
    loss: Loss

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({Need.REFERENCE} if self.config.actor.use_kl_loss else ())

    def advantages(self, rewards: Sequence[float | None], groups: Sequence[int]) -> list[float | None]:
        """One per episode, in order."""
        return self.estimator(rewards, groups, self.config.algorithm)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """The policy loss, times the importance weight, plus the KL term."""
        actor = self.config.actor
        policy = self.loss(tokens, actor)
        importance = torch.ones_like(policy.ratio) if tokens.importance is None else tokens.importance
        loss = policy.loss * importance
        kl = torch.zeros_like(policy.ratio)
        if tokens.reference is not None:
            divergence = k3(tokens.new, tokens.reference)
            loss, kl = loss + actor.kl_loss_coef * divergence, divergence.detach()
        return TokenLoss(loss, policy.ratio, policy.clipped, kl, importance)


def held_log_ratio(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, config: ActorSection) -> PolicyLoss:
    """-min(r A, clip(r) A)."""
    plain = -advantages * ratio
    held = -advantages * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    return PolicyLoss(torch.maximum(plain, held), ratio.detach(), (held > plain).detach())
