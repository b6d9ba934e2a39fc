"""How groups are played in tests."""

from psrl.schemas.messages.rollout import Sampling
from psrl.schemas.messages.run import RolloutSettings


def rollout_settings(**changes: object) -> RolloutSettings:
    return RolloutSettings(
        sampling=Sampling(temperature=1, max_tokens=8),
        seed=100,
        needed=2,
        offered=2,
        timeout_s=600,
        reward_timeout_s=60,
        coalesce_rewards=True,
    ).model_copy(update=changes)
