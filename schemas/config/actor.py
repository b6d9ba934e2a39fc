"""`actor.*`: the optimizer step."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from .base import Section


class LossAggregation(StrEnum):
    """How per-token losses become one number."""

    TOKEN_MEAN = "token-mean"
    """Sum over all trained tokens of the mini-batch, divided by their number."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """Mean over each sequence's tokens, then over sequences."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """Sum over each sequence's tokens, then mean over sequences."""


class LossMode(StrEnum):
    """The loss of a token, before the correction between engine and trainer and the KL term."""

    VANILLA = "vanilla"
    """Clipped surrogate with the ratio of each token (arXiv:1707.06347, eq. 7)."""
    GSPO = "gspo"
    """Clipped surrogate with the length-normalised ratio of the whole sequence (arXiv:2507.18071); its clip ranges are
    a few 1e-4, and it needs loss_agg_mode=seq-mean-token-mean."""


class PolicyLossSection(Section):
    loss_mode: LossMode = LossMode.VANILLA


class Precision(StrEnum):
    """Number format of the trainer's matrix products; master weights and optimizer state stay float32."""

    FP32 = "fp32"
    """float32 throughout: the oracle."""
    BF16 = "bf16"
    """bfloat16 autocast where the device supports it."""


class Optim(Section):
    lr: float = Field(default=1e-6, ge=0)
    """AdamW learning rate after warm-up. 0 freezes the policy: every step is made and published and changes nothing."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW betas."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW weight decay."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up from lr/steps to lr."""


class ActorSection(Section):
    ppo_mini_batch_size: int | None = Field(default=None, ge=1)
    """Groups per optimizer step; null takes the whole batch. Must divide psrl.staleness_buffer_entries."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over one batch."""
    ppo_max_token_len_per_gpu: int = Field(default=16384, ge=1)
    """Tokens (prompt + response, padding included) of one micro-batch: bounds memory."""
    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip of the probability ratio."""
    clip_ratio_high: float = Field(default=0.2, gt=0)
    """Upper clip of the probability ratio."""
    policy_loss: PolicyLossSection = PolicyLossSection()
    loss_agg_mode: LossAggregation = LossAggregation.TOKEN_MEAN
    use_kl_loss: bool = False
    """Add kl_loss_coef * KL(policy || reference) with the k3 estimator."""
    kl_loss_coef: float = Field(default=0.001, ge=0)
    """Weight of the KL term; the reference is version 0."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Maximum gradient norm."""
    precision: Precision = Precision.FP32
    optim: Optim = Optim()

    @model_validator(mode="after")
    def _betas_in_range(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.optim.betas):
            raise ValueError(f"actor.optim.betas={self.optim.betas}; allowed: two numbers in [0, 1)")
        return self

    @model_validator(mode="after")
    def _sequence_ratios_make_a_mean_over_sequences(self) -> Self:
        needed = LossAggregation.SEQ_MEAN_TOKEN_MEAN
        if self.policy_loss.loss_mode is LossMode.GSPO and self.loss_agg_mode is not needed:
            raise ValueError(
                f"actor.loss_agg_mode={self.loss_agg_mode} with actor.policy_loss.loss_mode=gspo, whose objective is a "
                f"mean over sequences; allowed: {needed}"
            )
        return self
