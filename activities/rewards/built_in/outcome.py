"""`outcome`: what the episode's environment or agent itself says that it is worth, as a part of a reward.

Promise: where it says nothing there is no score (L10).
"""

from typing import Any

from ....schemas.config.built_in_rewards import OutcomeOptions
from ....schemas.errors import UserCodeFailed
from ....schemas.messages.rewards import RewardSample
from ..reading import SCORE
from .contract import BuiltIn


class Outcome(BuiltIn):
    def __init__(self, options: OutcomeOptions) -> None:
        """It has none."""

    def __call__(self, sample: RewardSample) -> dict[str, Any]:
        if sample.outcome_reward is None:
            raise UserCodeFailed("the environment or the agent gave no reward")
        return {**sample.outcome_info, SCORE: sample.outcome_reward}
