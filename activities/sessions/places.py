"""The place of a turn in its session: what the agent said goes there, before it is played. Used by the gateway.

Promises: a turn is numbered by the store, once, under the key of its request, whoever asks how often and at the same
time; a branch is made with its first turn; nothing is copied from the branch that it left (L5).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.errors import InvariantViolated, SessionClosed, TurnInFlight
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.status import SegmentKind, SessionStatus, TrajectoryStatus
from ..store.branches import Fork
from ..store.codec import encode_ids
from ..store.connections import answer_of
from ..store.literals import listed
from .fences import RANGE
from .sessions import StoredSession
from .turns import end_of, stored_key

UNOWNED = 0
"""Fence of rows that no generate call wrote."""

PLACE_TURN = f"""
WITH this AS (
    SELECT status FROM sessions WHERE run_id = %(run)s AND session_id = %(session)s FOR UPDATE
), asked AS (
    SELECT index, turn, "end" FROM turns WHERE run_id = %(run)s AND group_id = %(group)s AND key = %(key)s
), newest AS (
    SELECT turn, "end" FROM turns WHERE run_id = %(run)s AND group_id = %(group)s AND index = %(index)s
    ORDER BY turn DESC LIMIT 1
), free AS (
    SELECT FROM this LEFT JOIN newest ON true
    WHERE this.status NOT IN ({listed(SessionStatus.CLOSING, SessionStatus.CLOSED)}) AND NOT EXISTS (SELECT FROM asked)
        AND CASE WHEN newest.turn IS NULL THEN 0 WHEN newest."end" IS NOT NULL THEN newest.turn + 1 END = %(turn)s
), begun AS (
    INSERT INTO trajectories (run_id, group_id, index, forked_index, forked_turn, fence)
    SELECT %(run)s, %(group)s, %(index)s, %(forked_index)s::integer, %(forked_turn)s::integer,
           coalesce((SELECT fence / {RANGE} * {RANGE} FROM trajectories
                     WHERE run_id = %(run)s AND group_id = %(group)s AND index = %(episode)s), {UNOWNED})
    FROM free WHERE %(turn)s = 0
    ON CONFLICT DO NOTHING
), made AS (
    INSERT INTO turns (run_id, group_id, index, turn, key, started_at)
    SELECT %(run)s, %(group)s, %(index)s, %(turn)s, %(key)s, clock_timestamp() FROM free
    ON CONFLICT DO NOTHING
    RETURNING turn
), reopened AS (
    UPDATE trajectories SET status = {listed(TrajectoryStatus.PENDING)}, finished_at = NULL
    FROM made
    WHERE run_id = %(run)s AND group_id = %(group)s AND index = %(index)s AND made.turn > 0
        AND status = {listed(TrajectoryStatus.FINISHED)}
), given AS (
    INSERT INTO segments (run_id, group_id, index, turn, seq, kind, fence, tokens, token_ids, started_at, finished_at)
    SELECT %(run)s, %(group)s, %(index)s, turn, 0, {listed(SegmentKind.ENVIRONMENT)}, {UNOWNED}, %(tokens)s,
           %(token_ids)b, clock_timestamp(), clock_timestamp()
    FROM made WHERE %(tokens)s > 0
)
SELECT this.status, asked.index AS asked_index, asked.turn AS asked_turn, asked."end" AS asked_end,
       newest.turn AS newest_turn, newest."end" AS newest_end, made.turn AS made
FROM this LEFT JOIN asked ON true LEFT JOIN newest ON true LEFT JOIN made ON true
"""
"""One round trip where a transaction of its parts takes eight. Copies of the gateway take turns by the lock on the
session; who had to wait for it has read the turns of before, and runs into a unique index instead of making one."""


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


async def place_turn(
    store: AsyncEngine, session: StoredSession, key: str, where: NewTurn, token_ids: Sequence[int]
) -> PlacedTurn:
    """The turn with this key, made unless it is there: the next of its branch, with what the agent said. Raises
    `TurnInFlight` when another turn of the branch has not ended, or has taken the place since it was chosen."""
    if where.index % session.episodes != session.episode:
        raise InvariantViolated(f"branch {where.index} is none of session {session.session_id}")
    values = _values(session, key, where, token_ids)
    while True:
        answer = await answer_of(store, PLACE_TURN, values)
        if not answer:
            raise InvariantViolated(f"session {session.session_id} of run {session.run_id} is not in the store")
        if (placed := _placed(session, where, answer[0])) is not None:
            return placed


def _placed(session: StoredSession, where: NewTurn, found: Any) -> PlacedTurn | None:
    """None: somebody else has made a turn meanwhile, which is seen when it is asked again."""
    if found.asked_turn is not None:
        return PlacedTurn(found.asked_index, found.asked_turn, end_of(found.asked_end))
    if found.made is not None:
        return PlacedTurn(where.index, found.made, None)
    if SessionStatus(found.status) in (SessionStatus.CLOSING, SessionStatus.CLOSED):
        raise SessionClosed(f"the session is {found.status}")
    if found.newest_turn is not None and found.newest_end is None:
        raise TurnInFlight(
            f"branch {where.index} of session {session.session_id} has turn {found.newest_turn} in flight"
        )
    number = 0 if found.newest_turn is None else found.newest_turn + 1
    if number != where.turn:
        raise TurnInFlight(f"branch {where.index} comes to turn {number}; turn {where.turn} was to be placed")
    return None


def _values(session: StoredSession, key: str, where: NewTurn, token_ids: Sequence[int]) -> dict[str, Any]:
    return {
        "run": session.run_id,
        "session": session.session_id,
        "group": session.group_id,
        "key": stored_key(session, key),
        "episode": session.episode,
        "index": where.index,
        "turn": where.turn,
        "forked_index": None if where.fork is None else where.fork.index,
        "forked_turn": None if where.fork is None else where.fork.turn,
        "tokens": len(token_ids),
        "token_ids": encode_ids(token_ids),
    }
