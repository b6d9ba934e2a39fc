"""From samples to scores, one call of the reward function per trajectory or for all that are scored together.

Promise: a call that failed on every attempt is a failed score with its reason, never 0.0 (L10).
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from ...schemas.config import RewardSection
from ...schemas.errors import UserCodeFailed
from ...schemas.messages.rewards import RewardSample, Score, ScoreOutcome
from ..user_code.attempts import with_attempts
from ..user_code.calls import UserCalls
from .judge import Question
from .reading import Reading


async def score_samples(
    calls: UserCalls,
    reward: RewardSection,
    indices: Sequence[int],
    samples: Sequence[RewardSample],
    needed: str | None = None,
    *,
    apart: bool = False,
) -> list[Score]:
    """`needed`: a metric that must be returned. `apart`: in a process whatever was chosen. Raises `RewardLoadError`."""
    try:
        by_group = (await with_attempts("reward", calls.about, reward.max_attempts)).by_group
    except UserCodeFailed as failure:
        return [_failed(index, failure) for index in indices]
    one = partial(_score, calls, reward, needed=needed, apart=apart)
    if by_group:
        return await one(indices, samples)
    found = await asyncio.gather(*(one([index], [sample]) for index, sample in zip(indices, samples, strict=True)))
    return [score for scores in found for score in scores]


async def _score(
    calls: UserCalls,
    reward: RewardSection,
    indices: Sequence[int],
    samples: Sequence[RewardSample],
    *,
    needed: str | None,
    apart: bool,
) -> list[Score]:
    """One call for all: every trajectory is scored, or every one fails."""

    async def attempt() -> list[Reading]:
        found: list[Reading] = await calls.call(Question(tuple(samples), needed), apart=apart)
        return found

    try:
        found = await with_attempts("reward", attempt, reward.max_attempts)
    except UserCodeFailed as failure:
        return [_failed(index, failure) for index in indices]
    return [_scored(index, one) for index, one in zip(indices, found, strict=True)]


def _scored(index: int, found: Reading) -> Score:
    return Score(index=index, outcome=ScoreOutcome.SCORED, reward=found.reward, metrics=found.metrics)


def _failed(index: int, failure: UserCodeFailed) -> Score:
    return Score(index=index, outcome=ScoreOutcome.FAILED, error=str(failure))
