"""Group-normalised advantages (GRPO, arXiv:2402.03300, eq. 3). Called by the trainer's advantage stage.

A reward that is missing is not 0.0 (L10): its trajectory has no advantage and does not enter the group's statistics.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

EPSILON = 1e-6
"""Added to the standard deviation, as veRL does."""


def group_advantages(rewards: Sequence[float | None], groups: Sequence[int], divide_by_std: bool) -> list[float | None]:
    """One advantage per trajectory, in order; None where the reward is missing or not finite.

    A group's mean and unbiased standard deviation are those of its scored members. A group that was made with one
    member has nothing to compare with: without division its advantage is the reward itself.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    advantages: list[float | None] = [None] * len(rewards)
    for indices in members.values():
        scored = [(i, r) for i in indices if (r := rewards[i]) is not None and math.isfinite(r)]
        if len(indices) == 1 and not divide_by_std:
            advantages[indices[0]] = scored[0][1] if scored else None
            continue
        values = _normalised([reward for _, reward in scored], divide_by_std)
        for (i, _), value in zip(scored, values, strict=True):
            advantages[i] = value
    return advantages


def _normalised(rewards: list[float], divide_by_std: bool) -> list[float]:
    # Equal rewards are told apart from nearly equal ones before any rounding: a mean that is off by one bit would
    # otherwise be divided by epsilon.
    if not rewards or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not divide_by_std:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (std + EPSILON) for value in centred]
