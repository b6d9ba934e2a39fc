"""The reward of a run: one function, or several whose scores are weighted and added.

Promises: the functions of one trajectory are called at the same time, each with limits of its own; where one of them
fails, the trajectory fails, named by it, and the others' scores make no reward (L10).
"""

import asyncio
import math
from collections.abc import Sequence
from functools import partial

from ...schemas.config import RewardPart, RewardSection
from ...schemas.messages.rewards import RewardSample, Score, ScoreOutcome
from ...schemas.text import storable
from ..user_code.calls import UserCalls
from ..user_code.prepared import MAX_LINE
from .compute import score_samples
from .judge import recipe


class RewardCalls:
    """One per run and process, so that a function's limits hold for all its calls."""

    def __init__(self, reward: RewardSection) -> None:
        self._parts = reward.parts
        self._calls = [
            UserCalls(f"reward {part.name}".strip(), recipe(part.limits, part.key), part.limits, part.key)
            for part in self._parts
        ]

    async def score(
        self, indices: Sequence[int], samples: Sequence[RewardSample], needed: str | None = None, *, apart: bool = False
    ) -> list[Score]:
        """As `score_samples`."""
        each = [
            partial(score_samples, calls, part.limits, indices, samples, _needed_of(part, needed), apart=apart)
            for part, calls in zip(self._parts, self._calls, strict=True)
        ]
        if not self._parts[0].name:
            return await each[0]()
        # All of them end before a refusal is told: none is left behind.
        found = await asyncio.gather(*(one() for one in each), return_exceptions=True)
        scores = [_or_raise(one) for one in found]
        return [self._sum(index, [of_part[at] for of_part in scores]) for at, index in enumerate(indices)]

    def close(self) -> None:
        for calls in self._calls:
            calls.close()

    def _sum(self, index: int, scores: Sequence[Score]) -> Score:
        """Of one trajectory."""
        total, metrics, failed = 0.0, dict[str, float](), list[str]()
        for part, score in zip(self._parts, scores, strict=True):
            if score.reward is None:
                failed.append(f"{part.name}: {score.error}")
                continue
            total += part.weight * score.reward
            metrics[part.name] = score.reward
            metrics |= {f"{part.name}/{name}": value for name, value in score.metrics.items()}
        if not failed and not math.isfinite(total):
            failed.append(f"the weighted sum is {total}; allowed: a finite number")
        if failed:
            return Score(index=index, outcome=ScoreOutcome.FAILED, error=storable("; ".join(failed), MAX_LINE))
        return Score(index=index, outcome=ScoreOutcome.SCORED, reward=total, metrics=metrics)


def _needed_of(part: RewardPart, needed: str | None) -> str | None:
    """The number that this function has to return for the run's filter."""
    if needed is None or not part.name:
        return needed
    owner, _, number = needed.partition("/")
    return number if owner == part.name and number else None


def _or_raise(found: list[Score] | BaseException) -> list[Score]:
    if isinstance(found, BaseException):
        raise found
    return found
