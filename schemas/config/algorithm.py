"""`algorithm.*`: advantages and the correction between engine and trainer log-probs."""

from enum import StrEnum

from pydantic import Field

from .base import Section


class AdvantageEstimator(StrEnum):
    """How rewards become advantages."""

    GRPO = "grpo"
    """A = r - mean(group), divided by std(group) when norm_adv_by_std_in_grpo (arXiv:2402.03300, eq. 3)."""


class RolloutCorrectionLevel(StrEnum):
    """What one importance weight belongs to."""

    TOKEN = "token"
    """One weight per sampled token."""


class RolloutCorrection(Section):
    rollout_is: RolloutCorrectionLevel | None = None
    """Multiply each token's loss by min(exp(old - rollout), threshold); null measures the gap but corrects
    nothing."""
    rollout_is_threshold: float = Field(default=2.0, gt=0)
    """Truncation of the importance weight."""


class AlgorithmSection(Section):
    adv_estimator: AdvantageEstimator = AdvantageEstimator.GRPO
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation (unbiased, as veRL does; plus 1e-6)."""
    rollout_correction: RolloutCorrection = RolloutCorrection()
