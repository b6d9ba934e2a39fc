"""Scoring finished trajectories, and the verdict on the group that they complete.

Promises: a reward is computed until it is stored and then never again; a failure stays a failure (L10): the trajectory
gets the status `failed` and no reward, never 0.0. Where groups are filtered, the call that stores the last score that
counts sees all of them, and has the verdict.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity

from ...schemas.config import ModelSection, RewardScope, RewardSection, RunConfig
from ...schemas.messages.data import Purpose
from ...schemas.messages.rewards import GroupVerdict, Score, ScoreOutcome, ScoreRequest, ScoreResult
from ...schemas.status import TrajectoryStatus
from ..boundary import boundary
from ..data.tokenizer import Tokenizer, load_tokenizer
from ..filters.registry import filter_name, needed_metric
from ..filters.scored import lock_group, read_scored_groups
from ..filters.verdict import Verdicts
from ..heartbeat import heartbeating
from ..store.runs import AdmittedRuns
from ..user_code.calls import UserCalls
from ..user_code.kept import KeptPerRun
from .compute import score_group, score_one
from .load import load_reward
from .samples import Scorable, read_scorable, to_sample, write_scores


class Rewards:
    def __init__(self, store: AsyncEngine) -> None:
        self._store = store
        self._runs = AdmittedRuns()
        self._calls = KeptPerRun[UserCalls]()
        self._tokenizers = KeptPerRun[Tokenizer]()
        self._verdicts = Verdicts()

    @activity.defn(name="score")
    @boundary
    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Heartbeats, so that it can be cancelled while a reward is slow."""
        async with heartbeating():
            async with self._store.connect() as connection:
                found = await read_scorable(connection, request)
                config = await self._runs.config(connection, request.run_id, found[0].workflow_run_id)
            filtered = found[0].purpose == Purpose.TRAIN and filter_name(config) is not None
            unscored = [item for item in found if item.status == TrajectoryStatus.FINISHED]
            fresh = await self._compute(config, unscored) if unscored else []
            if fresh:
                # What is stored counts: another attempt may have been first, or the trajectory was aborted meanwhile.
                async with self._store.begin() as connection:
                    if filtered:
                        await lock_group(connection, request.run_id, request.group_id)
                    await write_scores(connection, request, fresh)
                    found = await read_scorable(connection, request)
            verdict = await self._verdict(found[0].workflow_run_id, config, request) if filtered else None
            return ScoreResult(scores=tuple(_stored(item) for item in found), verdict=verdict)

    async def _compute(self, config: RunConfig, items: Sequence[Scorable]) -> list[Score]:
        tokenizer = await self._tokenizer(items[0].workflow_run_id, config.model)
        samples = [to_sample(item, tokenizer) for item in items]
        indices = [item.index for item in items]
        calls = self._calls_of(items[0].workflow_run_id, config.reward)
        needed = needed_metric(config) if items[0].purpose == Purpose.TRAIN else None
        if config.reward.scope is RewardScope.GROUP:
            return await score_group(calls, config.reward, indices, samples, needed)
        scores = [score_one(calls, config.reward, *pair, needed) for pair in zip(indices, samples, strict=True)]
        return list(await asyncio.gather(*scores))

    async def _verdict(self, run: str, config: RunConfig, request: ScoreRequest) -> GroupVerdict | None:
        """None while the group is incomplete."""
        async with self._store.connect() as connection:
            groups = await read_scored_groups(connection, request.run_id, [request.group_id], config.psrl.rollout_n)
        group = groups.get(request.group_id)
        return await self._verdicts.of(run, config, group) if group is not None else None

    async def _tokenizer(self, run: str, model: ModelSection) -> Tokenizer:
        """Looked up once per run: finding that its files are unchanged costs more than decoding an answer."""
        if run in self._tokenizers:
            return self._tokenizers[run]
        found = await asyncio.to_thread(load_tokenizer, model.path, model.trust_remote_code)
        return self._tokenizers.get(run, lambda: found)

    def _calls_of(self, run: str, reward: RewardSection) -> UserCalls:
        """One per run, shared by all its activities in this process."""
        return self._calls.get(run, lambda: UserCalls("reward", load_reward(reward.function), reward))


def _stored(item: Scorable) -> Score:
    """Without the metrics: they stay in the store."""
    if item.status == TrajectoryStatus.SCORED and item.reward is not None:
        return Score(index=item.index, outcome=ScoreOutcome.SCORED, reward=item.reward)
    return Score(index=item.index, outcome=ScoreOutcome.FAILED, error=item.reward_error or f"trajectory {item.status}")
