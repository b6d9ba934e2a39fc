"""The user's reward function, by its import path."""

from ...schemas.errors import RewardLoadError
from ..user_code.load import UserFunction, load_function


def load_reward(path: str) -> UserFunction:
    """Raises `RewardLoadError`."""
    takes = "the sample (with reward.scope=group: the list of samples)"
    return load_function("reward.function", path, takes, RewardLoadError)
