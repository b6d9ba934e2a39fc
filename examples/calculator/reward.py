"""The reward of the calculator example: `examples.calculator.reward:as_the_environment_says` in a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psrl.schemas.messages.rewards import RewardSample


def as_the_environment_says(sample: RewardSample) -> float:
    """1.0 for the right answer. A policy that never answers gets 0.0: the environment says nothing of it."""
    return 0.0 if sample.outcome_reward is None else sample.outcome_reward
