"""Scoring finished trajectories.

Promises: a reward is computed until it is stored and then never again; a failure stays a failure (L10): the trajectory
gets the status `failed` and no reward, never 0.0.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity

from ...schemas.config import ModelSection, RewardScope, RewardSection, RunConfig
from ...schemas.errors import UserCodeFailed
from ...schemas.messages.rewards import RewardSample, Score, ScoreOutcome, ScoreRequest, ScoreResult
from ..boundary import boundary
from ..data.tokenizer import Tokenizer, load_tokenizer
from ..heartbeat import heartbeating
from ..store.runs import AdmittedRuns
from ..user_code.attempts import shown, with_attempts
from ..user_code.calls import UserCalls
from .load import load_reward
from .samples import Scorable, read_scorable, to_sample, write_scores

Value = TypeVar("Value")

KEPT_RUNS = 8
"""Runs whose function and tokenizer a process keeps at hand."""


class Rewards:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._runs = AdmittedRuns()
        self._calls: dict[str, UserCalls] = {}
        self._tokenizers: dict[str, Tokenizer] = {}

    @activity.defn(name="score")
    @boundary
    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Heartbeats, so that it can be cancelled while a reward is slow."""
        async with heartbeating():
            async with self._engine.connect() as connection:
                found = await read_scorable(connection, request)
                config = await self._runs.config(connection, request.run_id, found[0].workflow_run_id)
            unscored = [item for item in found if item.status == "finished"]
            fresh = await self._compute(config, unscored) if unscored else []
            if fresh:
                # What is stored counts: another attempt may have been first, or the trajectory was aborted meanwhile.
                async with self._engine.begin() as connection:
                    await write_scores(connection, request, fresh)
                    found = await read_scorable(connection, request)
            return ScoreResult(scores=tuple(_stored(item) for item in found))

    async def _compute(self, config: RunConfig, items: Sequence[Scorable]) -> list[Score]:
        tokenizer = await self._tokenizer(items[0].workflow_run_id, config.model)
        samples = [to_sample(item, tokenizer) for item in items]
        indices = [item.index for item in items]
        calls = self._calls_of(items[0].workflow_run_id, config.reward)
        if config.reward.scope is RewardScope.GROUP:
            return await score_group(calls, config.reward, indices, samples)
        scores = [score_one(calls, config.reward, *pair) for pair in zip(indices, samples, strict=True)]
        return list(await asyncio.gather(*scores))

    async def _tokenizer(self, run: str, model: ModelSection) -> Tokenizer:
        """Looked up once per run: finding that its files are unchanged costs more than decoding an answer."""
        if run not in self._tokenizers:
            found = await asyncio.to_thread(load_tokenizer, model.path, model.trust_remote_code)
            self._tokenizers[run] = found
            _forget_oldest(self._tokenizers)
        return self._tokenizers[run]

    def _calls_of(self, run: str, reward: RewardSection) -> UserCalls:
        """One per run, shared by all its activities in this process."""
        if run not in self._calls:
            self._calls[run] = UserCalls("reward", load_reward(reward.function), reward)
            _forget_oldest(self._calls)
        return self._calls[run]


async def score_one(calls: UserCalls, reward: RewardSection, index: int, sample: RewardSample) -> Score:
    """One call for one trajectory."""

    async def attempt() -> float:
        return number(await calls.call(sample))

    try:
        value = await with_attempts("reward", attempt, reward.max_attempts)
    except UserCodeFailed as failure:
        return Score(index=index, outcome=ScoreOutcome.FAILED, error=str(failure))
    return Score(index=index, outcome=ScoreOutcome.SCORED, reward=value)


async def score_group(
    calls: UserCalls, reward: RewardSection, indices: Sequence[int], samples: Sequence[RewardSample]
) -> list[Score]:
    """One call for all: every trajectory is scored, or every one fails."""

    async def attempt() -> list[float]:
        values = await calls.call(list(samples))
        try:
            values = list(values)
        except TypeError as error:
            raise UserCodeFailed(f"returned {shown(values)}; allowed: one number per sample") from error
        if len(values) != len(samples):
            raise UserCodeFailed(f"returned {len(values)} values for {len(samples)} samples")
        return [number(value) for value in values]

    try:
        rewards = await with_attempts("reward", attempt, reward.max_attempts)
    except UserCodeFailed as failure:
        return [Score(index=index, outcome=ScoreOutcome.FAILED, error=str(failure)) for index in indices]
    return [
        Score(index=index, outcome=ScoreOutcome.SCORED, reward=value)
        for index, value in zip(indices, rewards, strict=True)
    ]


def number(value: object) -> float:
    """The value as a finite number. Raises `UserCodeFailed` for anything else, text included."""
    if hasattr(value, "__float__") or hasattr(value, "__index__"):
        try:
            result = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError) as error:
            raise UserCodeFailed(f"returned {shown(value)}, which is no number") from error
        if math.isfinite(result):
            return result
    raise UserCodeFailed(f"returned {shown(value)}; allowed: one finite number")


def _forget_oldest(kept: dict[str, Value]) -> None:
    while len(kept) > KEPT_RUNS:
        del kept[next(iter(kept))]


def _stored(item: Scorable) -> Score:
    if item.status == ScoreOutcome.SCORED and item.reward is not None:
        return Score(index=item.index, outcome=ScoreOutcome.SCORED, reward=item.reward)
    return Score(index=item.index, outcome=ScoreOutcome.FAILED, error=item.reward_error or f"trajectory {item.status}")
