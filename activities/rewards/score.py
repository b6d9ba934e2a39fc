"""Scoring finished episodes, and the verdict on the group that they complete.

Promises: a reward is computed until it is stored and then never again; a failure stays a failure (L10): all branches of
the episode get the status `failed` and no reward, never 0.0. Where groups are filtered, the call that stores the last
score that counts sees all of them, and has the verdict. Nobody can tell which of the calls in a process has ended it:
what was in progress is repeated where an end costs one call only.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity

from ...schemas.config import ModelSection, RewardSection, RunConfig
from ...schemas.messages.data import Purpose
from ...schemas.messages.rewards import GroupVerdict, Score, ScoreOutcome, ScoreRequest, ScoreResult
from ...schemas.status import TrajectoryStatus
from ..boundary import boundary
from ..data.tokenizer import Tokenizer, load_tokenizer
from ..filters.registry import filter_name, needed_metric
from ..filters.scored import lock_group, read_scored_groups
from ..filters.verdict import Verdicts
from ..heartbeat import heartbeating
from ..store.connections import one_statement_each
from ..store.runs import AdmittedRuns
from ..user_code.kept import KeptPerRun
from .own import own_score, unfit
from .samples import Scorable, read_scorable, to_sample, write_scores
from .weighted import RewardCalls


class Rewards:
    def __init__(self, store: AsyncEngine) -> None:
        self._store, self._alone = store, one_statement_each(store)
        self._runs = AdmittedRuns()
        self._calls = KeptPerRun[RewardCalls](RewardCalls.close)
        self._tokenizers = KeptPerRun[Tokenizer]()
        self._verdicts = Verdicts()

    @activity.defn(name="score")
    @boundary
    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Heartbeats, so that it can be cancelled while a reward is slow."""
        apart = activity.in_activity() and activity.info().attempt > 1
        async with heartbeating():
            async with self._alone.connect() as connection:
                found = await read_scorable(connection, request)
                config = await self._runs.config(connection, request.run_id, found[0].workflow_run_id)
            filtered = found[0].purpose == Purpose.TRAIN and filter_name(config) is not None
            unscored = [item for item in found if item.unscored]
            fresh = await self._compute(config, unscored, apart) if unscored else []
            scores = {item.index: _stored(item) for item in found if not item.unscored}
            if fresh:
                scores |= await self._write(request, fresh, lock=filtered)
            verdict = await self._verdict(found[0].workflow_run_id, config, request, apart) if filtered else None
            return ScoreResult(scores=tuple(scores[index] for index in sorted(scores)), verdict=verdict)

    async def _write(self, request: ScoreRequest, fresh: Sequence[Score], lock: bool) -> dict[int, Score]:
        """What the store then says of these trajectories."""
        async with (self._store if lock else self._alone).begin() as connection:
            if lock:
                await lock_group(connection, request.run_id, request.group_id)
            if await write_scores(connection, request, fresh):
                return {score.index: score.model_copy(update={"metrics": {}}) for score in fresh}
            of_these = request.model_copy(update={"indices": tuple(score.index for score in fresh)})
            return {item.index: _stored(item) for item in await read_scorable(connection, of_these)}

    def close(self) -> None:
        """Ends what was started for the user's functions."""
        self._calls.clear()
        self._verdicts.close()

    async def _compute(self, config: RunConfig, items: Sequence[Scorable], apart: bool) -> list[Score]:
        failed = [score for item in items if (score := unfit(item)) is not None]
        out = {score.index for score in failed}
        fit = [item for item in items if item.index not in out]
        return [*failed, *(await self._of_fit(config, fit, apart) if fit else [])]

    async def _of_fit(self, config: RunConfig, items: Sequence[Scorable], apart: bool) -> list[Score]:
        run, needed = items[0].workflow_run_id, needed_metric(config) if items[0].purpose == Purpose.TRAIN else None
        if not config.reward.parts:
            return [own_score(item, needed) for item in items]
        tokenizer = await self._tokenizer(run, config.model)
        samples = [to_sample(item, tokenizer) for item in items]
        indices = [item.index for item in items]
        return await self._calls_of(run, config.reward).score(indices, samples, needed, apart=apart)

    async def _verdict(self, run: str, config: RunConfig, request: ScoreRequest, apart: bool) -> GroupVerdict | None:
        """None while the group is incomplete."""
        async with self._store.connect() as connection:
            needed, episodes = config.psrl.rollout_n, request.episodes
            groups = await read_scored_groups(connection, request.run_id, [request.group_id], needed, episodes)
        group = groups.get(request.group_id)
        return await self._verdicts.of(run, config, group, apart=apart) if group is not None else None

    async def _tokenizer(self, run: str, model: ModelSection) -> Tokenizer:
        """Looked up once per run: finding that its files are unchanged costs more than decoding an answer."""
        if run in self._tokenizers:
            return self._tokenizers[run]
        found = await asyncio.to_thread(load_tokenizer, model.path, model.trust_remote_code)
        return self._tokenizers.get(run, lambda: found)

    def _calls_of(self, run: str, reward: RewardSection) -> RewardCalls:
        """One per run, shared by all its activities in this process."""
        return self._calls.get(run, lambda: RewardCalls(reward))


def _stored(item: Scorable) -> Score:
    """Without the metrics: they stay in the store."""
    if item.status == TrajectoryStatus.SCORED and item.reward is not None:
        return Score(index=item.index, outcome=ScoreOutcome.SCORED, reward=item.reward)
    return Score(index=item.index, outcome=ScoreOutcome.FAILED, error=item.reward_error or f"trajectory {item.status}")
