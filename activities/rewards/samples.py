"""What the store holds of trajectories that are to be scored, and where their scores go.

One query reads and one writes: scoring runs once per trajectory, so that its own cost counts.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ...schemas.errors import InvariantViolated
from ...schemas.messages.rewards import PROMPT_MESSAGES, RewardSample, Score, ScoreOutcome, ScoreRequest
from ...schemas.status import TrajectoryStatus
from ..data.tokenizer import Tokenizer
from ..store.codec import decode_ids
from ..store.literals import listed

READ: TextClause = text(
    """
    SELECT r.workflow_run_id, g.purpose, g.prompt_ids, g.prompt_text, g.data_source, g.ground_truth, g.extra,
           t.index, t.status, t.reward, t.reward_error, t.reward_metrics,
           (SELECT coalesce(string_agg(s.token_ids, ''::bytea ORDER BY s.turn, s.seq), ''::bytea) FROM segments s
            WHERE s.run_id = t.run_id AND s.group_id = t.group_id AND s.index = t.index) AS response
    FROM trajectories t JOIN groups g USING (run_id, group_id) JOIN runs r USING (run_id)
    WHERE t.run_id = :run AND t.group_id = :group AND t.index = ANY(:indices)
    ORDER BY t.index
    """
)

WRITE: TextClause = text(
    f"""
    UPDATE trajectories t
    SET status = new.status, reward = new.reward, reward_error = new.error, reward_metrics = new.metrics,
        scored_at = clock_timestamp()
    FROM unnest(CAST(:indices AS integer[]), CAST(:statuses AS text[]), CAST(:rewards AS double precision[]),
                CAST(:errors AS text[]), CAST(:metrics AS jsonb[])) AS new (index, status, reward, error, metrics)
    WHERE t.run_id = :run AND t.group_id = :group AND t.index = new.index
        AND t.status = {listed(TrajectoryStatus.FINISHED)}
    RETURNING t.index
    """
)
"""A trajectory that was aborted meanwhile keeps its status."""


STATUS_OF = {ScoreOutcome.SCORED: TrajectoryStatus.SCORED, ScoreOutcome.FAILED: TrajectoryStatus.FAILED}


@dataclass(frozen=True, slots=True)
class Scorable:
    """One trajectory, scored before or not, with its group's prompt."""

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
    response: bytes
    """All segments in order, the environment's too, encoded."""


async def read_scorable(connection: AsyncConnection, request: ScoreRequest) -> list[Scorable]:
    """In order of index. Raises `InvariantViolated` for a trajectory that is missing or has not finished."""
    key = {"run": request.run_id, "group": request.group_id, "indices": list(request.indices)}
    if not request.indices:
        raise InvariantViolated(f"group {request.group_id} of run {request.run_id}: no trajectories are to be scored")
    found = [Scorable(*row) for row in await connection.execute(READ, key)]
    name = f"group {request.group_id} of run {request.run_id}"
    missing = sorted(set(request.indices) - {item.index for item in found})
    if missing:
        raise InvariantViolated(f"{name} has no trajectories {missing}")
    pending = [item.index for item in found if item.status == TrajectoryStatus.PENDING]
    if pending:
        raise InvariantViolated(f"{name}: trajectories {pending} are to be scored before they have finished")
    return found


async def write_scores(connection: AsyncConnection, request: ScoreRequest, scores: Sequence[Score]) -> bool:
    """Whether every score was taken. Another attempt may have been first, or the trajectory was aborted meanwhile: then
    what is stored counts."""
    values = {
        "run": request.run_id,
        "group": request.group_id,
        "indices": [score.index for score in scores],
        "statuses": [STATUS_OF[score.outcome].value for score in scores],
        "rewards": [score.reward for score in scores],
        "errors": [score.error for score in scores],
        "metrics": [json.dumps(score.metrics) for score in scores],
    }
    return len((await connection.execute(WRITE, values)).all()) == len(scores)


def to_sample(item: Scorable, tokenizer: Tokenizer) -> RewardSample:
    """The sampled ids are decoded for reading only."""
    response_ids = decode_ids(item.response)
    extra = dict(item.extra)
    return RewardSample(
        data_source=item.data_source,
        prompt_text=item.prompt_text,
        response_text=tokenizer.decode(response_ids, skip_special_tokens=True),
        ground_truth=item.ground_truth,
        messages=extra.pop(PROMPT_MESSAGES, None),
        extra=extra,
        prompt_ids=decode_ids(item.prompt_ids),
        response_ids=response_ids,
    )
