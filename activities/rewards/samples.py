"""What the store holds of episodes that are to be scored, and where their scores go.

One query reads and one writes: scoring runs once per episode, so that its own cost counts. An episode of one turn is
one trajectory; one of several may have several branches, of which all get its score. A turn that has not ended (it was
cut, or given up) is no part of it: nobody has heard its answer.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ...schemas.errors import InvariantViolated
from ...schemas.messages.episodes import EpisodeOutcome
from ...schemas.messages.rewards import PROMPT_MESSAGES, RewardSample, SampleTurn, Score, ScoreOutcome, ScoreRequest
from ...schemas.status import SegmentKind, TrajectoryStatus
from ..data.tokenizer import Tokenizer
from ..store.branches import fork_of, lineage
from ..store.codec import decode_ids
from ..store.literals import listed

READ: TextClause = text(
    f"""
    SELECT r.workflow_run_id, g.purpose, g.prompt_ids, g.prompt_text, g.data_source, g.ground_truth, g.extra,
           t.index AS branch, t.status, t.reward, t.reward_error, t.reward_metrics, t.outcome,
           t.forked_index, t.forked_turn,
           said.turns, said.sampled, said.lengths, said.ids
    FROM trajectories t JOIN groups g USING (run_id, group_id) JOIN runs r USING (run_id), LATERAL (
        SELECT array_agg(s.turn ORDER BY s.turn, s.seq) AS turns,
               array_agg(s.kind = {listed(SegmentKind.SAMPLED)} ORDER BY s.turn, s.seq) AS sampled,
               array_agg(s.tokens ORDER BY s.turn, s.seq) AS lengths,
               string_agg(s.token_ids, ''::bytea ORDER BY s.turn, s.seq) AS ids
        FROM turns u JOIN segments s USING (run_id, group_id, index, turn)
        WHERE u.run_id = t.run_id AND u.group_id = t.group_id AND u.index = t.index AND u."end" IS NOT NULL
    ) said
    WHERE t.run_id = :run AND t.group_id = :group AND t.index % :episodes = ANY(:indices)
    ORDER BY t.index % :episodes, t.index
    """
)

WRITE: TextClause = text(
    f"""
    UPDATE trajectories t
    SET status = new.status, reward = new.reward, reward_error = new.error, reward_metrics = new.metrics,
        scored_at = clock_timestamp(),
        fence = CASE t.status WHEN {listed(TrajectoryStatus.PENDING)} THEN :sealed ELSE t.fence END
    FROM unnest(CAST(:indices AS integer[]), CAST(:statuses AS text[]), CAST(:rewards AS double precision[]),
                CAST(:errors AS text[]), CAST(:metrics AS jsonb[])) AS new (index, status, reward, error, metrics)
    JOIN trajectories first ON first.run_id = :run AND first.group_id = :group AND first.index = new.index
    WHERE t.run_id = :run AND t.group_id = :group AND t.index % :episodes = new.index
        AND (t.status = {listed(TrajectoryStatus.FINISHED)}
             OR t.status = {listed(TrajectoryStatus.PENDING)} AND first.outcome IS NOT NULL)
    RETURNING t.index
    """
)
"""A trajectory that was aborted meanwhile keeps its status."""

SEALED = 2**63 - 1
"""Fence of a branch whose last turn was cut: what may still arrive of it must not change what was scored."""

STATUS_OF = {ScoreOutcome.SCORED: TrajectoryStatus.SCORED, ScoreOutcome.FAILED: TrajectoryStatus.FAILED}
UNSCORED = (TrajectoryStatus.PENDING, TrajectoryStatus.FINISHED)


@dataclass(slots=True)
class ReadTurn:
    """Token ids of one turn that has ended."""

    environment: list[int]
    policy: list[int]


@dataclass(frozen=True, slots=True)
class Scorable:
    """One episode, scored before or not, with its group's prompt."""

    workflow_run_id: str
    purpose: str
    prompt_ids: bytes
    prompt_text: str
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    index: int
    status: str
    reward: float | None
    reward_error: str
    reward_metrics: dict[str, float]
    outcome: EpisodeOutcome | None
    """None where the policy's one answer is all there is."""
    turns: tuple[ReadTurn, ...]
    """Of its last branch that has one, with those of the branches that it left."""

    @property
    def unscored(self) -> bool:
        return self.status in UNSCORED

    @property
    def response_ids(self) -> list[int]:
        return [token for turn in self.turns for token in (*turn.environment, *turn.policy)]


async def read_scorable(connection: AsyncConnection, request: ScoreRequest) -> list[Scorable]:
    """In order of index. Raises `InvariantViolated` for an episode that is missing or has not finished."""
    key = {"run": request.run_id, "group": request.group_id, "indices": list(request.indices)}
    if not request.indices:
        raise InvariantViolated(f"group {request.group_id} of run {request.run_id}: no trajectories are to be scored")
    rows = (await connection.execute(READ, {**key, "episodes": request.episodes})).all()
    by_episode = groupby(rows, key=lambda row: row.branch % request.episodes)
    found = [_scorable(list(branches)) for _, branches in by_episode]
    name = f"group {request.group_id} of run {request.run_id}"
    missing = sorted(set(request.indices) - {item.index for item in found})
    if missing:
        raise InvariantViolated(f"{name} has no trajectories {missing}")
    pending = [item.index for item in found if item.status == TrajectoryStatus.PENDING and item.outcome is None]
    if pending:
        raise InvariantViolated(f"{name}: trajectories {pending} are to be scored before they have finished")
    return found


def _scorable(branches: Sequence[Row[Any]]) -> Scorable:
    """Of the rows of one episode, its first branch first."""
    first = branches[0]
    spoken = {row.branch: list(_turns(row)) for row in branches}
    forks = {row.branch: fork_of(row.forked_index, row.forked_turn) for row in branches}
    final = max((index for index, turns in spoken.items() if turns), default=first.branch)
    return Scorable(
        workflow_run_id=first.workflow_run_id,
        purpose=first.purpose,
        prompt_ids=first.prompt_ids,
        prompt_text=first.prompt_text,
        data_source=first.data_source,
        ground_truth=first.ground_truth,
        extra=first.extra,
        index=first.branch,
        status=first.status,
        reward=first.reward,
        reward_error=first.reward_error,
        reward_metrics=first.reward_metrics,
        outcome=None if first.outcome is None else EpisodeOutcome.model_validate(first.outcome),
        turns=tuple(
            turn
            for stretch in lineage(final, forks)
            for number, turn in enumerate(spoken[stretch.index])
            if stretch.holds(number)
        ),
    )


def _turns(row: Row[Any]) -> Iterator[ReadTurn]:
    """Those of one branch. Turns are numbered without holes, and only the last may be without an end."""
    ids, start = decode_ids(row.ids or b""), 0
    segments = zip(row.turns or (), row.sampled or (), row.lengths or (), strict=True)
    for _, of_turn in groupby(segments, key=lambda segment: segment[0]):
        turn = ReadTurn([], [])
        for _, sampled, length in of_turn:
            (turn.policy if sampled else turn.environment).extend(ids[start : start + length])
            start += length
        yield turn


async def write_scores(connection: AsyncConnection, request: ScoreRequest, scores: Sequence[Score]) -> bool:
    """Whether every score was taken. Another attempt may have been first, or the trajectory was aborted meanwhile: then
    what is stored counts."""
    values = {
        "run": request.run_id,
        "group": request.group_id,
        "episodes": request.episodes,
        "sealed": SEALED,
        "indices": [score.index for score in scores],
        "statuses": [STATUS_OF[score.outcome].value for score in scores],
        "rewards": [score.reward for score in scores],
        "errors": [score.error for score in scores],
        "metrics": [json.dumps(score.metrics) for score in scores],
    }
    taken = set(await connection.scalars(WRITE, values))
    return taken >= {score.index for score in scores}


def to_sample(item: Scorable, tokenizer: Tokenizer) -> RewardSample:
    """The sampled ids are decoded for reading only."""
    response_ids = item.response_ids
    response_text = tokenizer.decode(response_ids, skip_special_tokens=True)
    extra = dict(item.extra)
    return RewardSample(
        data_source=item.data_source,
        prompt_text=item.prompt_text,
        response_text=response_text,
        ground_truth=item.ground_truth,
        messages=extra.pop(PROMPT_MESSAGES, None),
        extra=extra,
        prompt_ids=decode_ids(item.prompt_ids),
        response_ids=response_ids,
        turns=_told(item.turns, response_text, tokenizer),
        outcome_reward=item.outcome.reward if item.outcome else None,
        outcome_info=item.outcome.info if item.outcome else {},
    )


def _told(turns: Sequence[ReadTurn], response_text: str, tokenizer: Tokenizer) -> list[SampleTurn]:
    if len(turns) == 1 and not turns[0].environment:  # As most are: decoded already.
        return [SampleTurn(policy=response_text)]
    return [
        SampleTurn(
            environment=tokenizer.decode(turn.environment, skip_special_tokens=True),
            policy=tokenizer.decode(turn.policy, skip_special_tokens=True),
        )
        for turn in turns
    ]
