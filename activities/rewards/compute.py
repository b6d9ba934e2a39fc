"""From samples to scores, one call of the reward function per trajectory or per group.

Promise: a call that failed on every attempt is a failed score with its reason, never 0.0 (L10).
"""

from collections.abc import Mapping, Sequence

from ...schemas.config import RewardSection
from ...schemas.errors import UserCodeFailed
from ...schemas.messages.rewards import RewardSample, Score, ScoreOutcome
from ..user_code.attempts import shown, with_attempts
from ..user_code.calls import UserCalls
from .reading import Reading, reading


async def score_one(
    calls: UserCalls, reward: RewardSection, index: int, sample: RewardSample, needed: str | None = None
) -> Score:
    """`needed`: a metric that must be returned."""

    async def attempt() -> Reading:
        return reading(await calls.call(sample), needed)

    try:
        return _scored(index, await with_attempts("reward", attempt, reward.max_attempts))
    except UserCodeFailed as failure:
        return _failed(index, failure)


async def score_group(
    calls: UserCalls,
    reward: RewardSection,
    indices: Sequence[int],
    samples: Sequence[RewardSample],
    needed: str | None = None,
) -> list[Score]:
    """One call for all: every trajectory is scored, or every one fails."""

    async def attempt() -> list[Reading]:
        returned = await calls.call(list(samples))
        if isinstance(returned, Mapping) or not hasattr(returned, "__iter__"):
            raise UserCodeFailed(f"returned {shown(returned)}; allowed: a list with one number or dict per sample")
        values = list(returned)
        if len(values) != len(samples):
            raise UserCodeFailed(f"returned {len(values)} values for {len(samples)} samples")
        return [reading(value, needed) for value in values]

    try:
        found = await with_attempts("reward", attempt, reward.max_attempts)
    except UserCodeFailed as failure:
        return [_failed(index, failure) for index in indices]
    return [_scored(index, one) for index, one in zip(indices, found, strict=True)]


def _scored(index: int, found: Reading) -> Score:
    return Score(index=index, outcome=ScoreOutcome.SCORED, reward=found.reward, metrics=found.metrics)


def _failed(index: int, failure: UserCodeFailed) -> Score:
    return Score(index=index, outcome=ScoreOutcome.FAILED, error=str(failure))
