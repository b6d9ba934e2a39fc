"""What the store holds of trajectories that are to be scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, literal_column, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncConnection

from ...schemas.errors import InvariantViolated
from ...schemas.messages.rewards import RewardSample, ScoreRequest
from ...schemas.tables import Group, Segment, Trajectory
from ..data.tokenizer import Tokenizer
from ..store.codec import decode_ids


@dataclass(frozen=True, slots=True)
class Scorable:
    """One trajectory, scored before or not."""

    index: int
    status: str
    reward: float | None
    reward_error: str
    response: bytes
    """All segments in order, encoded."""


async def read_group(connection: AsyncConnection, request: ScoreRequest) -> Any:
    """The group's row. Raises `InvariantViolated` when it is not there."""
    columns = (Group.prompt_ids, Group.prompt_text, Group.data_source, Group.ground_truth, Group.extra)
    query = select(*columns).where(Group.run_id == request.run_id, Group.group_id == request.group_id)
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise InvariantViolated(f"group {request.group_id} of run {request.run_id} is not in the store")
    return row


async def read_scorable(connection: AsyncConnection, request: ScoreRequest) -> list[Scorable]:
    """In order of index. Raises `InvariantViolated` for a trajectory that is missing or has not finished."""
    ids = func.string_agg(Segment.token_ids, aggregate_order_by(literal_column("''::bytea"), Segment.turn, Segment.seq))
    response = (
        select(func.coalesce(ids, literal_column("''::bytea")))
        .where(
            Segment.run_id == Trajectory.run_id,
            Segment.group_id == Trajectory.group_id,
            Segment.index == Trajectory.index,
        )
        .scalar_subquery()
    )
    query = (
        select(Trajectory.index, Trajectory.status, Trajectory.reward, Trajectory.reward_error, response)
        .where(
            Trajectory.run_id == request.run_id,
            Trajectory.group_id == request.group_id,
            Trajectory.index.in_(request.indices),
        )
        .order_by(Trajectory.index)
    )
    found = [Scorable(*row) for row in await connection.execute(query)]
    _check_finished(request, found)
    return found


def _check_finished(request: ScoreRequest, found: Sequence[Scorable]) -> None:
    name = f"group {request.group_id} of run {request.run_id}"
    missing = sorted(set(request.indices) - {item.index for item in found})
    if missing:
        raise InvariantViolated(f"{name} has no trajectories {missing}")
    pending = [item.index for item in found if item.status == "pending"]
    if pending:
        raise InvariantViolated(f"{name}: trajectories {pending} are to be scored before they have finished")


def to_sample(group: Any, item: Scorable, tokenizer: Tokenizer) -> RewardSample:
    """The sampled ids are decoded for reading only."""
    response_ids = decode_ids(item.response)
    return RewardSample(
        data_source=group.data_source,
        prompt_text=group.prompt_text,
        response_text=tokenizer.decode(response_ids, skip_special_tokens=True),
        ground_truth=group.ground_truth,
        extra=group.extra,
        prompt_ids=decode_ids(group.prompt_ids),
        response_ids=response_ids,
    )
