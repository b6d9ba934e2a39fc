"""Turns in the store, as a generate call sees them: the context, what earlier calls stored, and the claim that keeps
late results of abandoned attempts out (L6, L8).

A claim is committed before anything is read: what an earlier attempt was storing meanwhile is there by then, and
nothing of it can follow. So two statements do, however long the conversation.
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...schemas.errors import InvariantViolated, StaleAttempt
from ...schemas.ids import GroupId, RunId
from ...schemas.messages.rollout import SegmentEnd, TrajectoryRef, TurnRequest
from ...schemas.status import SegmentKind
from ...schemas.tables import Group, Run, Segment, Trajectory, Turn
from ..loaded import LoadedOnce
from ..store.codec import decode_ids
from ..store.connections import answer_of, one_statement_each
from ..store.literals import listed
from .patience import patiently

ATTEMPTS_PER_CALL = 1_000_000
KEPT_PROMPTS = 4096


def fence_number(call: int, attempt: int) -> int:
    """Rises with every attempt of every call; the trajectory belongs to the highest that has claimed it."""
    return call * ATTEMPTS_PER_CALL + attempt


CLAIM = """
UPDATE trajectories SET fence = %(fence)s
WHERE run_id = %(run)s AND group_id = %(group)s AND index = %(index)s AND fence <= %(fence)s
RETURNING fence
"""

READ_TURN = f"""
WITH RECURSIVE path (depth, index, turn) AS (
    SELECT 0, %(index)s::integer, %(turn)s::integer
    UNION ALL
    SELECT path.depth + 1, t.forked_index, t.forked_turn + 1 FROM path JOIN trajectories t ON t.index = path.index
    WHERE t.run_id = %(run)s AND t.group_id = %(group)s AND t.forked_index IS NOT NULL
), parts AS (
    SELECT path.depth, path.turn AS until, s.turn, s.seq, s.token_ids, s.version, s."end",
           path.depth = 0 AND s.turn = path.turn AS now, s.kind = {listed(SegmentKind.SAMPLED)} AS sampled
    FROM path JOIN segments s ON s.index = path.index AND s.turn < path.turn + (path.depth = 0)::integer
    WHERE s.run_id = %(run)s AND s.group_id = %(group)s
), before AS (
    SELECT path.depth, path.index, path.turn AS until, (
        SELECT count(*) FROM turns t
        WHERE t.run_id = %(run)s AND t.group_id = %(group)s AND t.index = path.index AND t.turn < path.turn
            AND t."end" IS NOT NULL
    ) AS ended FROM path
)
SELECT (SELECT min(index) FROM before WHERE ended <> until) AS unended,
       string_agg(token_ids, '' ORDER BY depth DESC, turn, seq) FILTER (WHERE NOT (now AND sampled)) AS context,
       string_agg(token_ids, '' ORDER BY seq) FILTER (WHERE now AND sampled) AS token_ids,
       count(*) FILTER (WHERE now) AS segments,
       (array_agg(version ORDER BY seq DESC) FILTER (WHERE now AND sampled))[1] AS version,
       (array_agg("end" ORDER BY seq DESC) FILTER (WHERE now AND sampled))[1] AS "end"
FROM parts
"""
"""Of the branch and of those that it has left, in one row."""


@dataclass(slots=True)
class StoredTurn:
    """What of the turn is in the store."""

    context: list[int] = field(default_factory=list)
    """Token ids between the group's prompt and what the turn samples: every earlier turn and what the environment gave
    in this one; of a branch that left another, that one's before them."""
    token_ids: list[int] = field(default_factory=list)
    """Sampled."""
    segments: int = 0
    """Of either kind: the number of the next one."""
    version: int | None = None
    """Of the newest of them."""
    end: SegmentEnd | None = None


class TurnStore:
    def __init__(self, store: AsyncEngine) -> None:
        self._store, self._reads = store, one_statement_each(store)
        self._prompts = LoadedOnce[tuple[RunId, GroupId], list[int]](KEPT_PROMPTS)

    async def prompt(self, ref: TrajectoryRef) -> list[int]:
        """Token ids of the group's prompt. Its trajectories share one query."""
        what = f"the question for the prompt of {_name(ref)}"
        key = (ref.run_id, ref.group_id)
        return await self._prompts.get(key, lambda: patiently(lambda repeated: self._read_prompt(ref), what))

    async def claim(self, request: TurnRequest, fence: int) -> StoredTurn:
        """Take the trajectory over from earlier attempts. Raises `StaleAttempt` when a later one has it."""
        return await patiently(
            lambda repeated: self._claim(request, fence), f"the claim of {_name(request.trajectory)}"
        )

    async def _claim(self, request: TurnRequest, fence: int) -> StoredTurn:
        if not await answer_of(self._store, CLAIM, {**_of(request), "fence": fence}):
            raise await self.refusal(request, fence)
        return await self._read(request)

    async def _read(self, request: TurnRequest) -> StoredTurn:
        (found,) = await answer_of(self._store, READ_TURN, _of(request))
        if found.unended is not None:
            raise InvariantViolated(
                f"{_name(request.trajectory)}: turn {request.turn} is asked for before those before it have ended"
            )
        return StoredTurn(
            context=decode_ids(found.context or b""),
            token_ids=decode_ids(found.token_ids or b""),
            segments=found.segments,
            version=found.version,
            end=None if found.end is None else SegmentEnd(found.end),
        )

    async def begin_anew(self, request: TurnRequest, fence: int) -> StoredTurn:
        """Take back what is stored of an unfinished turn. Raises `StaleAttempt`."""
        return await patiently(
            lambda repeated: self._begin_anew(request, fence), f"a new beginning of {_name(request.trajectory)}"
        )

    async def _begin_anew(self, request: TurnRequest, fence: int) -> StoredTurn:
        ref = request.trajectory
        async with self._store.begin() as connection:
            of_turn = (*_is(Turn, ref), Turn.turn == request.turn)
            taken_back = select(func.coalesce(func.sum(Turn.tokens), 0)).where(*of_turn).scalar_subquery()
            owned = await connection.execute(
                update(Trajectory)
                .where(*_is(Trajectory, ref), Trajectory.fence == fence)
                .values(tokens=Trajectory.tokens - taken_back)
            )
            if not owned.rowcount:
                raise await self._refusal(connection, ref, fence)
            sampled = (*_is(Segment, ref), Segment.turn == request.turn, Segment.kind == SegmentKind.SAMPLED)
            await connection.execute(delete(Segment).where(*sampled))
            await connection.execute(update(Turn).where(*of_turn).values(tokens=0))
        return await self._read(request)

    async def refusal(self, request: TurnRequest, fence: int) -> StaleAttempt:
        """The error of an attempt whose rows the store refused; counted."""
        async with self._store.begin() as connection:
            return await self._refusal(connection, request.trajectory, fence)

    async def _refusal(self, connection: AsyncConnection, ref: TrajectoryRef, fence: int) -> StaleAttempt:
        owner = await connection.scalar(select(Trajectory.fence).where(*_is(Trajectory, ref)))
        if owner is None:
            raise InvariantViolated(f"{_name(ref)} is not in the store")
        await connection.execute(
            update(Run).where(Run.run_id == ref.run_id).values(refused_results=Run.refused_results + 1)
        )
        await connection.commit()
        return StaleAttempt(f"{_name(ref)} belongs to attempt {owner}; the result of attempt {fence} is refused")

    async def _read_prompt(self, ref: TrajectoryRef) -> list[int]:
        query = select(Group.prompt_ids).where(Group.run_id == ref.run_id, Group.group_id == ref.group_id)
        async with self._reads.connect() as connection:
            found = await connection.scalar(query)
        if found is None:
            raise InvariantViolated(f"group {ref.group_id} of run {ref.run_id} is not in the store")
        return decode_ids(found)


def _of(request: TurnRequest) -> dict[str, Any]:
    ref = request.trajectory
    return {"run": ref.run_id, "group": ref.group_id, "index": ref.index, "turn": request.turn}


def _is(table: type[Trajectory] | type[Turn] | type[Segment], ref: TrajectoryRef):  # type: ignore[no-untyped-def]
    return table.run_id == ref.run_id, table.group_id == ref.group_id, table.index == ref.index


def _name(ref: TrajectoryRef) -> str:
    return f"trajectory {ref.run_id}/{ref.group_id}/{ref.index}"
