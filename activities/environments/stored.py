"""An episode in the store, as a step of its environment reads and writes it.

Promises: what an environment answers is stored once, whoever steps it how often; the answer, and the tokens with which
the next turn begins, or the outcome, are stored together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from ...schemas.errors import InvariantViolated
from ...schemas.messages.environments import StepEnvironment, StoredStep
from ...schemas.messages.episodes import EpisodeOutcome
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.status import SegmentKind, TrajectoryStatus
from ...schemas.tables import Segment, Trajectory, Turn
from ..store.codec import decode_ids, encode_ids

UNOWNED = 0
"""Fence of rows that no generate call wrote."""

EPISODE = text(
    """
    SELECT r.workflow_run_id, g.purpose, g.prompt_text, g.data_source, g.ground_truth, g.extra,
        (SELECT coalesce(sum(s.tokens), 0) FROM segments s
         WHERE s.run_id = g.run_id AND s.group_id = g.group_id AND s.index = :index AND s.turn <= :turn
        ) AS response_tokens
    FROM groups g JOIN runs r USING (run_id) WHERE g.run_id = :run AND g.group_id = :group
    """
)


@dataclass(frozen=True)
class PlayedTurn:
    end: SegmentEnd
    step: StoredStep | None
    """None: no environment has answered it."""


@dataclass(frozen=True)
class Episode:
    workflow_run_id: str
    purpose: str
    prompt_text: str
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    response_tokens: int
    """After the prompt, up to the end of the turn in question."""
    turns: tuple[PlayedTurn, ...]
    """Up to the turn in question."""


async def read_episode(connection: AsyncConnection, request: StepEnvironment) -> Episode:
    """Raises `InvariantViolated` when the turn has not ended."""
    key = {"run": request.run_id, "group": request.group_id, "index": request.index, "turn": request.turn}
    row = (await connection.execute(EPISODE, key)).one_or_none()
    played = select(Turn.end, Turn.step).where(*_turns(request), Turn.turn <= request.turn).order_by(Turn.turn)
    turns = [(end, step) for end, step in await connection.execute(played)]
    if row is None or len(turns) != request.turn + 1 or any(end is None for end, _ in turns):
        raise InvariantViolated(
            f"trajectory {request.run_id}/{request.group_id}/{request.index}: the environment is asked to answer turn "
            f"{request.turn}, which has not ended"
        )
    return Episode(
        **row._mapping,
        turns=tuple(
            PlayedTurn(SegmentEnd(end), None if step is None else StoredStep.model_validate(step))
            for end, step in turns
        ),
    )


async def read_sampled(connection: AsyncConnection, request: StepEnvironment, turns: Sequence[int]) -> list[list[int]]:
    """The ids that were sampled in each of these turns, given in order."""
    query = (
        select(Segment.turn, Segment.token_ids)
        .where(Segment.run_id == request.run_id, Segment.group_id == request.group_id, Segment.index == request.index)
        .where(Segment.turn.in_(turns), Segment.kind == SegmentKind.SAMPLED.value)
        .order_by(Segment.turn, Segment.seq)
    )
    found: dict[int, list[int]] = {turn: [] for turn in turns}
    for turn, ids in await connection.execute(query):
        found[turn] += decode_ids(ids)
    return [found[turn] for turn in turns]


async def claim_step(connection: AsyncConnection, request: StepEnvironment) -> bool:
    """Before a step that must not be repeated. False: it was begun before."""
    begun = StoredStep(done=False).model_dump(mode="json")
    claimed = update(Turn).where(*_turns(request), Turn.turn == request.turn, Turn.step.is_(None)).values(step=begun)
    return bool((await connection.execute(claimed)).rowcount)


async def write_step(
    connection: AsyncConnection,
    request: StepEnvironment,
    step: StoredStep,
    outcome: EpisodeOutcome | None,
    token_ids: Sequence[int],
) -> bool:
    """Within a transaction. `outcome`: of an episode that has ended; else the next turn begins with `token_ids`. False:
    another attempt was first, and nothing is written."""
    first = or_(Turn.step.is_(None), Turn.step["done"].astext == "false")
    written = update(Turn).where(*_turns(request), Turn.turn == request.turn, first)
    if not (await connection.execute(written.values(step=step.model_dump(mode="json")))).rowcount:
        return False
    if outcome is None:
        await _begin_turn(connection, request, token_ids)
    else:
        await _end(connection, request, step, outcome)
    return True


async def _begin_turn(connection: AsyncConnection, request: StepEnvironment, token_ids: Sequence[int]) -> None:
    """Its last turn had ended, and with it the trajectory: it has one more."""
    key = {"run_id": request.run_id, "group_id": request.group_id, "index": request.index, "turn": request.turn + 1}
    now = func.clock_timestamp()
    await connection.execute(insert(Turn).values(**key, started_at=now))
    if token_ids:
        segment = {"seq": 0, "kind": SegmentKind.ENVIRONMENT.value, "fence": UNOWNED, "tokens": len(token_ids)}
        ids = {"token_ids": encode_ids(token_ids), "started_at": now, "finished_at": now}
        await connection.execute(insert(Segment).values(**key, **segment, **ids))
    pending = {"status": TrajectoryStatus.PENDING.value, "finished_at": None}
    reopened = update(Trajectory).where(*_trajectory(request), Trajectory.status == TrajectoryStatus.FINISHED.value)
    await connection.execute(reopened.values(**pending))


async def _end(
    connection: AsyncConnection, request: StepEnvironment, step: StoredStep, outcome: EpisodeOutcome
) -> None:
    ended = {"outcome": outcome.model_dump(mode="json")}
    await connection.execute(update(Trajectory).where(*_trajectory(request)).values(**ended))
    if not outcome.ended.success:
        failed = {"status": TrajectoryStatus.FAILED.value, "reward_error": f"{outcome.ended}: {step.error}"}
        waiting = Trajectory.status == TrajectoryStatus.FINISHED.value
        await connection.execute(update(Trajectory).where(*_trajectory(request), waiting).values(**failed))


def _turns(request: StepEnvironment):  # type: ignore[no-untyped-def]
    return Turn.run_id == request.run_id, Turn.group_id == request.group_id, Turn.index == request.index


def _trajectory(request: StepEnvironment):  # type: ignore[no-untyped-def]
    return (
        Trajectory.run_id == request.run_id,
        Trajectory.group_id == request.group_id,
        Trajectory.index == request.index,
    )
