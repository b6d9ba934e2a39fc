"""`algorithm.*`: advantages and the correction between engine and trainer log-probs."""

from enum import StrEnum

from pydantic import Field

from .base import Section


class AdvantageEstimator(StrEnum):
    """How rewards become advantages."""

    GRPO = "grpo"
    """A = r - mean(group), divided by std(group) when norm_adv_by_std_in_grpo (arXiv:2402.03300, eq. 3)."""
    RLOO = "rloo"
    """A = r - mean(the others of the group) (arXiv:2402.14740)."""


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


REWARD_ITSELF = ("score", "seq_reward", "seq_final_reward")
"""Names that people know the reward by."""


class FilterGroups(Section):
    metric: str = "score"
    """What dynamic_sampling_filter compares. `score` (also `seq_reward`, `seq_final_reward`) is the reward itself; any
    other name is a number that the reward function returns beside it, such as `acc`: under a shaped reward the rewards
    of a group always differ a little, though all of its answers failed."""


class AlgorithmSection(Section):
    adv_estimator: AdvantageEstimator = AdvantageEstimator.GRPO
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation (unbiased, as veRL does; plus 1e-6)."""
    mask_truncated: bool = False
    """Leave responses that were cut by their length out of the loss (overlong filtering, arXiv:2503.14476, section 3.4;
    TRL's mask_truncated_completions). Their rewards still count in their group's advantages."""
    filter_groups: FilterGroups = FilterGroups()
    rollout_correction: RolloutCorrection = RolloutCorrection()
