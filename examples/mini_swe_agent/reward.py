"""The reward of the coding agent's episodes: `examples.mini_swe_agent.reward:own` in a run's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psrl.schemas.messages.rewards import RewardSample


def own(sample: RewardSample) -> float | None:
    """What the agent itself said: whether the test passed. None, of an agent that said nothing, is refused."""
    return sample.outcome_reward
