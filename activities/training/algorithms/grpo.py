"""`grpo`: rewards centred on their group's mean, by choice divided by its standard deviation
(arXiv:2402.03300, eq. 3)."""

import math
from collections.abc import Sequence

from ....schemas.config import AlgorithmSection
from .groups import all_equal, within_groups

EPSILON = 1e-6
"""Added to the standard deviation, as veRL does."""


def advantages(rewards: Sequence[float | None], groups: Sequence[int], config: AlgorithmSection) -> list[float | None]:
    """A group's mean and unbiased standard deviation are those of its scored members. A group that was made with one
    member has nothing to compare with: without division its advantage is the reward itself."""

    def of_group(scored: list[float], members: int) -> list[float]:
        if members == 1 and not config.norm_adv_by_std_in_grpo:
            return scored
        return _normalised(scored, config.norm_adv_by_std_in_grpo)

    return within_groups(rewards, groups, of_group)


def _normalised(rewards: list[float], divide_by_std: bool) -> list[float]:
    if all_equal(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not divide_by_std:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (std + EPSILON) for value in centred]
