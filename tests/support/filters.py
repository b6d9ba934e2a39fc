"""Group filters of the tests, named in configurations as `tests.support.filters:…`."""

import asyncio

from psrl.schemas.messages.rewards import ScoredGroup


def all_long(group: ScoredGroup) -> str | None:
    shortest = min(trajectory.tokens for trajectory in group.trajectories)
    return f"the shortest answer has {shortest} tokens" if shortest > 2 else None


async def all_long_async(group: ScoredGroup) -> str | None:
    await asyncio.sleep(0)
    return all_long(group)


def by_style(group: ScoredGroup) -> str | None:
    """Needs a number that the reward returned."""
    return None if max(group.values("style")) > 0 else "no answer has style"


def says_true(group: ScoredGroup) -> bool:
    return True


def raises(group: ScoredGroup) -> str | None:
    raise LookupError(f"nothing known of {group.group_id}")


def of_two(rewards: list[float], metrics: list[float]) -> None:
    """Not what a filter is called with."""
