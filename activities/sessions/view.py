"""Sessions as they are looked at from outside: the tokens of one, and a line of each that is open."""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.ids import RunId
from ...schemas.status import SegmentKind, SessionStatus
from ...schemas.tables import Segment, Trajectory
from ..store.branches import Fork, fork_of
from ..store.codec import decode_ids, decode_logprobs
from .sessions import StoredSession


@dataclass(slots=True)
class TurnView:
    """What one turn added to its branch."""

    turn: int
    prompt_tokens: int
    """Before what it sampled."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    instances: list[str] = field(default_factory=list)
    """Of its segments."""
    end: str | None = None


@dataclass(slots=True)
class BranchView:
    index: int
    token_ids: list[int]
    """The whole context: with the tokens of the branch that it left, the environment's and the sampled ones."""
    turns: list[TurnView]
    """Its own."""
    forked: Fork | None
    """Where it left another."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    session_id: str
    status: str
    turns_in_flight: int
    tokens: int
    """Of its longest branch, those of the branches that it left included."""
    instance: str | None
    """That sampled last."""


async def branches_of(store: AsyncEngine, session: StoredSession) -> list[BranchView]:
    """In order of their indices, so that a branch comes after the one that it left."""
    mine = (Trajectory.run_id == session.run_id, Trajectory.group_id == session.group_id)
    found = select(Trajectory.index, Trajectory.forked_index, Trajectory.forked_turn).where(
        *mine, Trajectory.index % session.episodes == session.episode
    )
    segments = (
        select(Segment)
        .where(Segment.run_id == session.run_id, Segment.group_id == session.group_id)
        .where(Segment.index % session.episodes == session.episode)
        .order_by(Segment.index, Segment.turn, Segment.seq)
    )
    branches: dict[int, BranchView] = {}
    async with store.connect() as connection:
        rows = (await connection.execute(segments)).all()
        # After the segments, whose branches are there by now.
        for index, left, turn in await connection.execute(found.order_by(Trajectory.index)):
            branches[index] = BranchView(index, [], [], fork_of(left, turn))
    for row in rows:
        _add(branches, row)
    return list(branches.values())


async def open_sessions(store: AsyncEngine, run_id: RunId) -> list[OpenSession]:
    async with store.connect() as connection:
        return [OpenSession(*row) for row in await connection.execute(OPEN, {"run": run_id})]


def _add(branches: dict[int, BranchView], row: Any) -> None:
    branch = branches[row.index]
    if not branch.turns and branch.forked is not None:
        branch.token_ids = _until(branches[branch.forked.index], branch.forked.turn)
    if not branch.turns or branch.turns[-1].turn != row.turn:
        branch.turns.append(TurnView(row.turn, len(branch.token_ids)))
    turn, ids = branch.turns[-1], decode_ids(row.token_ids)
    branch.token_ids += ids
    if row.kind == SegmentKind.ENVIRONMENT:
        turn.prompt_tokens += len(ids)
        return
    turn.token_ids += ids
    turn.logprobs += decode_logprobs(row.logprobs)
    turn.versions += [row.version] * len(ids)
    turn.instances.append(row.instance)
    turn.end = row.end


def _until(left: BranchView, last: int) -> list[int]:
    turn = next(turn for turn in left.turns if turn.turn == last)
    return left.token_ids[: turn.prompt_tokens + len(turn.token_ids)]


OPEN = text(
    f"""
    WITH RECURSIVE open AS (
        SELECT * FROM sessions WHERE run_id = :run AND status <> '{SessionStatus.CLOSED}'
    ), path (session_id, group_id, branch, index, last) AS (
        SELECT o.session_id, t.group_id, t.index, t.index, CAST(NULL AS integer)
        FROM open o JOIN trajectories t ON t.group_id = o.group_id AND t.index % o.episodes = o.episode
        WHERE t.run_id = :run
        UNION ALL
        SELECT p.session_id, p.group_id, p.branch, t.forked_index, t.forked_turn
        FROM path p JOIN trajectories t ON t.group_id = p.group_id AND t.index = p.index
        WHERE t.run_id = :run AND t.forked_index IS NOT NULL
    ), branches AS (
        SELECT p.session_id, p.branch, sum(s.tokens) AS tokens
        FROM path p JOIN segments s ON s.group_id = p.group_id AND s.index = p.index
            AND (p.last IS NULL OR s.turn <= p.last)
        WHERE s.run_id = :run GROUP BY p.session_id, p.branch
    )
    SELECT o.session_id, o.status,
           (SELECT count(*) FROM turns t WHERE t.run_id = o.run_id AND t.group_id = o.group_id
                AND t.index % o.episodes = o.episode AND t."end" IS NULL AND t.key IS NOT NULL),
           COALESCE((SELECT max(b.tokens) FROM branches b WHERE b.session_id = o.session_id), 0),
           (SELECT s.instance FROM segments s WHERE s.run_id = o.run_id AND s.group_id = o.group_id
                AND s.index % o.episodes = o.episode AND s.instance IS NOT NULL ORDER BY s.finished_at DESC LIMIT 1)
    FROM open o ORDER BY o.session_id
    """
)
