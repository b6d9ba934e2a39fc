"""`rloo`: a trajectory's reward against the mean reward of the others of its group (REINFORCE leave-one-out,
arXiv:2402.14740, section 3.3). The baseline does not depend on the trajectory itself, so the gradient is unbiased."""

import math
from collections.abc import Sequence

from ....schemas.config import AlgorithmSection
from .groups import all_equal, within_groups


def advantages(rewards: Sequence[float | None], groups: Sequence[int], config: AlgorithmSection) -> list[float | None]:
    return within_groups(rewards, groups, _leave_one_out)


def _leave_one_out(rewards: list[float], members: int) -> list[float]:
    """0 for the only scored member of a group: there is nobody to compare it with."""
    if all_equal(rewards):
        return [0.0] * len(rewards)
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]
