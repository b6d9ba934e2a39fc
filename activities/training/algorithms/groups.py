"""Walking the groups of a batch, for estimators that compare a trajectory with the others of its group.

A reward that is missing is not 0.0 (L10): its trajectory has no advantage and does not enter the group's statistics.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

OfGroup = Callable[[list[float], int], list[float]]
"""From the rewards of a group's scored members, and the number of all its members, to an advantage for each of them."""


def within_groups(rewards: Sequence[float | None], groups: Sequence[int], of_group: OfGroup) -> list[float | None]:
    """One advantage per trajectory, in order; None where the reward is missing or not finite."""
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    advantages: list[float | None] = [None] * len(rewards)
    for indices in members.values():
        scored = [(i, r) for i in indices if (r := rewards[i]) is not None and math.isfinite(r)]
        values = of_group([reward for _, reward in scored], len(indices))
        for (i, _), value in zip(scored, values, strict=True):
            advantages[i] = value
    return advantages


def all_equal(rewards: list[float]) -> bool:
    """Equal rewards are told apart from nearly equal ones before any rounding: a mean that is off by one bit would
    otherwise become an advantage."""
    return not rewards or min(rewards) == max(rewards)
