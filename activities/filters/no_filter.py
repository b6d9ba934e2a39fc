"""Every complete group is trained on: the filter to compare another one with."""

from ...schemas.config import RunConfig
from ...schemas.messages.rewards import ScoredGroup
from .contract import GroupFilter


def no_filter(config: RunConfig) -> GroupFilter:
    return keep


def keep(group: ScoredGroup) -> None:
    return None
