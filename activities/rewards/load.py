"""A run's reward function at admission: what can be known to be wrong with it is refused here."""

from collections.abc import Iterable

from ...schemas.config import RewardIsolation, RewardSection
from ...schemas.errors import RewardLoadError, UserCodeFailed
from ..user_code.prepared import Found
from ..user_code.process import examine
from .judge import recipe


def check_reward(reward: RewardSection) -> Found:
    """Loads it in a process of its own, which a module may end. Raises `RewardLoadError`."""
    try:
        found = examine(recipe(reward))
    except UserCodeFailed as failure:
        raise RewardLoadError(f"{_named(reward)}: importing it failed: {failure}") from failure
    if found.need and reward.isolation is RewardIsolation.THREAD:
        raise RewardLoadError(
            f"reward.isolation=thread, but {found.need}, which needs a process of its own; "
            "allowed: reward.isolation=auto or process"
        )
    return found


def check_columns(reward: RewardSection, found: Found, columns: Iterable[str]) -> None:
    """`columns` are what the data have for it. Raises `RewardLoadError` for a function that cannot be called with
    them."""
    there = sorted(set(columns))
    if missing := sorted(found.about.columns - set(there)):
        raise RewardLoadError(
            f"{_named(reward)} takes {found.about.signature}: the data have no column "
            f"{', '.join(map(repr, missing))}; columns there: {', '.join(there) or 'none beside the prompt'}"
        )


def chosen_for(reward: RewardSection, found: Found) -> str | None:
    """What was decided on the user's behalf, for people to know."""
    if found.need and reward.isolation is RewardIsolation.AUTO:
        return f"the reward runs in processes of its own: {found.need}"
    return None


def _named(reward: RewardSection) -> str:
    return f"reward.function={reward.function!r}"
