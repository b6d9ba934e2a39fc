"""Turns of a session before and after they are played: what the agent said goes in, what was sampled comes out.

Promises: a turn is numbered by the store, once, under the key of its request, whoever asks how often and at the same
time; a branch is made with its first turn; nothing is copied from the branch that it left (L5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...schemas.errors import InvariantViolated, SessionClosed, TurnInFlight
from ...schemas.ids import InstanceId
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.status import SegmentKind, SessionStatus, TrajectoryStatus
from ...schemas.tables import Segment, Session, Trajectory, Turn
from ..store.branches import Fork
from ..store.codec import decode_ids, decode_logprobs, encode_ids
from .sessions import StoredSession

UNOWNED = 0
"""Fence of rows that no generate call wrote."""

PROMPT_TOKENS = text(
    f"""
    WITH RECURSIVE path (index, turn) AS (
        SELECT CAST(:index AS integer), CAST(:turn AS integer)
        UNION ALL
        SELECT t.forked_index, t.forked_turn FROM path JOIN trajectories t ON t.index = path.index
        WHERE t.run_id = :run AND t.group_id = :group AND t.forked_index IS NOT NULL
    )
    SELECT sum(s.tokens) FROM path JOIN segments s ON s.index = path.index AND s.turn <= path.turn
    WHERE s.run_id = :run AND s.group_id = :group
      AND (s.kind = '{SegmentKind.ENVIRONMENT}' OR s.index <> :index OR s.turn < :turn)
    """
)


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """A turn of a session, by the name that the next request has for it."""

    index: int
    turn: int
    node: str | None
    end: SegmentEnd | None
    """None: in flight, or given up by who asked for it."""
    key: str | None = None
    """Of the request that asked for it; None: given up."""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """Where a turn is to be: the next of a branch, or the first of a new one."""

    index: int
    turn: int = 0
    """The number that it has there, since its tokens were made to follow the turn before."""
    fork: Fork | None = None
    """Of a new branch: what it left; None for one that begins with nothing."""


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    index: int
    turn: int
    end: SegmentEnd | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled tokens of one turn, in order."""

    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    """Of each token."""
    instance: InstanceId
    """That sampled the last."""
    end: SegmentEnd
    ended_at: datetime


async def known_turns(store: AsyncEngine, session: StoredSession) -> list[KnownTurn]:
    """Of all branches, in order of (index, turn)."""
    query = (
        select(Turn.index, Turn.turn, Turn.key, Turn.node, Turn.end)
        .where(Turn.run_id == session.run_id, Turn.group_id == session.group_id)
        .where(Turn.index % session.episodes == session.episode)
        .order_by(Turn.index, Turn.turn)
    )
    async with store.connect() as connection:
        found = await connection.execute(query)
        return [
            KnownTurn(index, turn, node, _end(end), _asked_key(session, key)) for index, turn, key, node, end in found
        ]


async def place_turn(
    store: AsyncEngine, session: StoredSession, key: str, where: NewTurn, token_ids: Sequence[int]
) -> PlacedTurn:
    """The turn with this key, made unless it is there: the next of its branch, with what the agent said. Raises
    `TurnInFlight` when another turn of the branch has not ended, or has taken the place since it was chosen."""
    async with store.begin() as connection:
        status = await _lock(connection, session)
        if (placed := await _placed(connection, session, key)) is not None:
            return placed
        if status in (SessionStatus.CLOSING, SessionStatus.CLOSED):
            raise SessionClosed(f"the session is {status}")
        if where.index % session.episodes != session.episode:
            raise InvariantViolated(f"branch {where.index} is none of session {session.session_id}")
        of_branch = {"run_id": session.run_id, "group_id": session.group_id, "index": where.index}
        number = await _next_number(connection, session, where.index)
        if number != where.turn:
            raise TurnInFlight(f"branch {where.index} comes to turn {number}; turn {where.turn} was to be placed")
        if number:
            await _reopen(connection, session, where.index)
        else:
            fork = {} if where.fork is None else {"forked_index": where.fork.index, "forked_turn": where.fork.turn}
            await connection.execute(insert(Trajectory).values(**of_branch, **fork).on_conflict_do_nothing())
        this = {**of_branch, "turn": number}
        await connection.execute(insert(Turn).values(**this, key=_key(session, key), started_at=func.clock_timestamp()))
        if token_ids:
            await connection.execute(
                insert(Segment).values(
                    **this,
                    seq=0,
                    kind=SegmentKind.ENVIRONMENT.value,
                    fence=UNOWNED,
                    tokens=len(token_ids),
                    token_ids=encode_ids(token_ids),
                    started_at=func.clock_timestamp(),
                    finished_at=func.clock_timestamp(),
                )
            )
        return PlacedTurn(where.index, number, None)


async def sampled(store: AsyncEngine, session: StoredSession, index: int, turn: int) -> Sampled:
    """Raises `InvariantViolated` while the turn has not ended."""
    of_turn = (Segment.run_id == session.run_id, Segment.group_id == session.group_id, Segment.index == index)
    what = (Segment.tokens, Segment.token_ids, Segment.logprobs, Segment.version, Segment.instance)
    query = (
        select(*what, Segment.end, Segment.finished_at)
        .where(*of_turn, Segment.turn == turn, Segment.kind == SegmentKind.SAMPLED.value)
        .order_by(Segment.seq)
    )
    async with store.connect() as connection:
        segments = (await connection.execute(query)).all()
    if not segments or segments[-1].end is None:
        raise InvariantViolated(f"turn {turn} of branch {index} of session {session.session_id} has not ended")
    return Sampled(
        token_ids=[token for segment in segments for token in decode_ids(segment.token_ids)],
        logprobs=[value for segment in segments for value in decode_logprobs(segment.logprobs)],
        versions=[segment.version for segment in segments for _ in range(segment.tokens)],
        instance=InstanceId(segments[-1].instance),
        end=SegmentEnd(segments[-1].end),
        ended_at=segments[-1].finished_at,
    )


async def prompt_tokens(store: AsyncEngine, session: StoredSession, index: int, turn: int) -> int:
    """How many tokens come before what a turn samples, those of the branches that its own has left included."""
    of_turn = {"run": session.run_id, "group": session.group_id, "index": index, "turn": turn}
    async with store.connect() as connection:
        return int(await connection.scalar(PROMPT_TOKENS, of_turn) or 0)


async def name_turn(store: AsyncEngine, session: StoredSession, index: int, turn: int, node: str) -> None:
    """By what the next request will call it. Idempotent."""
    this = (Turn.run_id == session.run_id, Turn.group_id == session.group_id, Turn.index == index, Turn.turn == turn)
    async with store.begin() as connection:
        await connection.execute(update(Turn).where(*this).values(node=node))


async def give_up_turn(store: AsyncEngine, session: StoredSession, key: str) -> None:
    """Take its key from a turn that failed for good: who asks again gets another one. It stays its branch's last, so
    that nothing follows it there."""
    of_group = (Turn.run_id == session.run_id, Turn.group_id == session.group_id)
    async with store.begin() as connection:
        await connection.execute(
            update(Turn).where(*of_group, Turn.key == _key(session, key), Turn.end.is_(None)).values(key=None)
        )


async def _lock(connection: AsyncConnection, session: StoredSession) -> SessionStatus:
    """Copies of the gateway take turns with the turns of one session. Its status, which may be another by now."""
    this = (Session.run_id == session.run_id, Session.session_id == session.session_id)
    status = await connection.scalar(select(Session.status).where(*this).with_for_update())
    if status is None:
        raise InvariantViolated(f"session {session.session_id} of run {session.run_id} is not in the store")
    return SessionStatus(status)


async def _placed(connection: AsyncConnection, session: StoredSession, key: str) -> PlacedTurn | None:
    query = select(Turn.index, Turn.turn, Turn.end).where(
        Turn.run_id == session.run_id, Turn.group_id == session.group_id, Turn.key == _key(session, key)
    )
    for index, turn, end in await connection.execute(query):
        return PlacedTurn(index, turn, _end(end))
    return None


async def _next_number(connection: AsyncConnection, session: StoredSession, index: int) -> int:
    of_branch = (Turn.run_id == session.run_id, Turn.group_id == session.group_id, Turn.index == index)
    newest = select(Turn.turn, Turn.end).where(*of_branch).order_by(Turn.turn.desc()).limit(1)
    found = (await connection.execute(newest)).one_or_none()
    if found is None:
        return 0
    if found.end is None:
        raise TurnInFlight(f"branch {index} of session {session.session_id} has turn {found.turn} in flight")
    return int(found.turn) + 1


async def _reopen(connection: AsyncConnection, session: StoredSession, index: int) -> None:
    """Its last turn had ended, and with it the trajectory: it has one more."""
    await connection.execute(
        update(Trajectory)
        .where(Trajectory.run_id == session.run_id, Trajectory.group_id == session.group_id, Trajectory.index == index)
        .where(Trajectory.status == TrajectoryStatus.FINISHED.value)
        .values(status=TrajectoryStatus.PENDING.value, finished_at=None)
    )


def _key(session: StoredSession, key: str) -> str:
    """Agents choose their keys; two sessions of a group may choose the same."""
    return f"{session.session_id}:{key}"


def _asked_key(session: StoredSession, key: str | None) -> str | None:
    return None if key is None else key.removeprefix(_key(session, ""))


def _end(value: str | None) -> SegmentEnd | None:
    return None if value is None else SegmentEnd(value)
