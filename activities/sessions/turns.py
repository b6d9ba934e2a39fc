"""Turns of a session as the store has them: which there are, and what was sampled. `places` puts them there."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.errors import InvariantViolated
from ...schemas.ids import InstanceId
from ...schemas.messages.rollout import SegmentEnd
from ...schemas.status import SegmentKind
from ...schemas.tables import Turn
from ..store.codec import decode_ids, decode_logprobs
from ..store.connections import answer_of
from ..store.literals import listed
from .sessions import StoredSession

PROMPT_TOKENS = f"""
    WITH RECURSIVE path (index, turn) AS (
        SELECT %(index)s::integer, %(turn)s::integer
        UNION ALL
        SELECT t.forked_index, t.forked_turn FROM path JOIN trajectories t ON t.index = path.index
        WHERE t.run_id = %(run)s AND t.group_id = %(group)s AND t.forked_index IS NOT NULL
    )
    SELECT coalesce(sum(s.tokens), 0) AS tokens
    FROM path JOIN segments s ON s.index = path.index AND s.turn <= path.turn
    WHERE s.run_id = %(run)s AND s.group_id = %(group)s
      AND (s.kind = {listed(SegmentKind.ENVIRONMENT)} OR s.index <> %(index)s OR s.turn < %(turn)s)
"""
KNOWN_TURNS = """
    SELECT index, turn, key, node, "end" FROM turns
    WHERE run_id = %(run)s AND group_id = %(group)s AND mod(index, %(episodes)s) = %(episode)s
    ORDER BY index, turn
"""
SAMPLED_SEGMENTS = f"""
    SELECT tokens, token_ids, logprobs, version, instance, "end", finished_at FROM segments
    WHERE run_id = %(run)s AND group_id = %(group)s AND index = %(index)s AND turn = %(turn)s
      AND kind = {listed(SegmentKind.SAMPLED)}
    ORDER BY seq
"""
NAME_TURN = """
    UPDATE turns SET node = %(node)s
    WHERE run_id = %(run)s AND group_id = %(group)s AND index = %(index)s AND turn = %(turn)s
    RETURNING turn
"""


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
    of_session = {**_of_group(session), "episode": session.episode, "episodes": session.episodes}
    return [
        KnownTurn(index, turn, node, end_of(end), None if key is None else key.removeprefix(stored_key(session, "")))
        for index, turn, key, node, end in await answer_of(store, KNOWN_TURNS, of_session)
    ]


async def sampled(store: AsyncEngine, session: StoredSession, index: int, turn: int) -> Sampled:
    """Raises `InvariantViolated` while the turn has not ended."""
    segments = await answer_of(store, SAMPLED_SEGMENTS, {**_of_group(session), "index": index, "turn": turn})
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
    (found,) = await answer_of(store, PROMPT_TOKENS, {**_of_group(session), "index": index, "turn": turn})
    return int(found.tokens)


async def name_turn(store: AsyncEngine, session: StoredSession, index: int, turn: int, node: str) -> None:
    """By what the next request will call it. Idempotent."""
    await answer_of(store, NAME_TURN, {**_of_group(session), "index": index, "turn": turn, "node": node})


async def give_up_turn(store: AsyncEngine, session: StoredSession, key: str) -> None:
    """Take its key from a turn that failed for good: who asks again gets another one. It stays its branch's last, so
    that nothing follows it there."""
    of_group = (Turn.run_id == session.run_id, Turn.group_id == session.group_id)
    async with store.begin() as connection:
        await connection.execute(
            update(Turn).where(*of_group, Turn.key == stored_key(session, key), Turn.end.is_(None)).values(key=None)
        )


def stored_key(session: StoredSession, key: str) -> str:
    """Agents choose their keys; two sessions of a group may choose the same."""
    return f"{session.session_id}:{key}"


def end_of(value: str | None) -> SegmentEnd | None:
    return None if value is None else SegmentEnd(value)


def _of_group(session: StoredSession) -> dict[str, Any]:
    return {"run": session.run_id, "group": session.group_id}
