"""`reward.*`: how a finished trajectory is scored."""

from enum import StrEnum

from pydantic import Field

from .base import Section


class RewardScope(StrEnum):
    """What one call of the reward function sees."""

    TRAJECTORY = "trajectory"
    """One sample; returns one number, or a dict that has `score` and further numbers by name."""
    GROUP = "group"
    """All samples of the group, in order; returns a list with a number or dict for each. Runs when the whole group has
    finished."""


class RewardSection(Section):
    function: str = ""
    """Import path `package.module:function`, sync or async. Required. It returns a finite number, or a dict that has
    `score`: the numbers and booleans beside it are stored with the trajectory, their means are reported per step, and a
    group filter can compare them; what is no number is left out."""
    scope: RewardScope = RewardScope.TRAJECTORY
    timeout_s: float = Field(default=60, gt=0)
    """Time limit of one call."""
    max_attempts: int = Field(default=3, ge=1)
    """Calls before the trajectory fails. A failure is never 0.0."""
    coalesce: bool = True
    """Score trajectories of a group that finished meanwhile in one task. Turn off for slow rewards, so that
    none waits for a sibling's."""
    max_concurrency: int = Field(default=64, ge=1)
    """Calls of the function at the same time per worker."""
