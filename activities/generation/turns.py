"""Turns in the store, as a generate call sees them: the context, what earlier calls stored, and the claim that keeps
late results of abandoned attempts out (L6, L8)."""

from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...schemas.errors import InvariantViolated, StaleAttempt
from ...schemas.ids import GroupId, RunId
from ...schemas.messages.rollout import SegmentEnd, TrajectoryRef, TurnRequest
from ...schemas.status import SegmentKind
from ...schemas.tables import Group, Run, Segment, Trajectory, Turn
from ..loaded import LoadedOnce
from ..store.codec import decode_ids
from ..store.connections import one_statement_each
from .patience import patiently

ATTEMPTS_PER_CALL = 1_000_000
KEPT_PROMPTS = 4096


def fence_number(call: int, attempt: int) -> int:
    """Rises with every attempt of every call; the trajectory belongs to the highest that has claimed it."""
    return call * ATTEMPTS_PER_CALL + attempt


@dataclass(slots=True)
class StoredTurn:
    """Sampled tokens of the turn that are in the store."""

    token_ids: list[int] = field(default_factory=list)
    segments: int = 0
    """Of either kind: the number of the next one."""
    version: int | None = None
    """Of the newest of them."""
    end: SegmentEnd | None = None


class TurnStore:
    def __init__(self, store: AsyncEngine) -> None:
        self._store, self._reads = store, one_statement_each(store)
        self._prompts = LoadedOnce[tuple[RunId, GroupId], list[int]](KEPT_PROMPTS)

    async def prompt(self, request: TurnRequest) -> list[int]:
        """Token ids before what the turn samples: the prompt, for which the trajectories of a group share one query,
        then every earlier turn and what the environment gave in this one; of a branch that left another, that one's
        before them."""
        ref, turn = request.trajectory, request.turn
        prompt = await self._prompt_of_group(ref)
        if not turn and not request.conversation:
            return prompt
        what = f"the question for the context of {_name(ref)} turn {turn}"
        return [*prompt, *await patiently(lambda repeated: self._read_before(ref, turn), what)]

    async def _prompt_of_group(self, ref: TrajectoryRef) -> list[int]:
        what = f"the question for the prompt of {_name(ref)}"
        key = (ref.run_id, ref.group_id)
        return await self._prompts.get(key, lambda: patiently(lambda repeated: self._read_prompt(ref), what))

    async def claim(self, request: TurnRequest, fence: int) -> StoredTurn:
        """Take the trajectory over from earlier attempts. Raises `StaleAttempt` when a later one has it."""
        return await patiently(
            lambda repeated: self._claim(request, fence), f"the claim of {_name(request.trajectory)}"
        )

    async def _claim(self, request: TurnRequest, fence: int) -> StoredTurn:
        ref = request.trajectory
        async with self._store.begin() as connection:
            claimed = await connection.execute(
                update(Trajectory).where(*_is(Trajectory, ref), Trajectory.fence <= fence).values(fence=fence)
            )
            if not claimed.rowcount:
                raise await self._refusal(connection, ref, fence)
            return await _read_turn(connection, ref, request.turn)

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
            return await _read_turn(connection, ref, request.turn)

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

    async def _read_before(self, ref: TrajectoryRef, turn: int) -> list[int]:
        async with self._reads.connect() as connection:
            ids = await self._read_path(connection, ref, turn)
            given = (Segment.turn == turn) & (Segment.kind == SegmentKind.ENVIRONMENT)
            return [*ids, *await _read_ids(connection, ref, given)]

    async def _read_path(self, connection: AsyncConnection, ref: TrajectoryRef, turn: int) -> list[int]:
        """Everything before a turn; all of it has ended."""
        ended = select(func.count()).where(*_is(Turn, ref), Turn.turn < turn, Turn.end.is_not(None))
        if await connection.scalar(ended) != turn:
            raise InvariantViolated(f"{_name(ref)}: turn {turn} is asked for before those before it have ended")
        own = await _read_ids(connection, ref, Segment.turn < turn)
        fork = select(Trajectory.forked_index, Trajectory.forked_turn).where(*_is(Trajectory, ref))
        left, last = (await connection.execute(fork)).one()
        if left is None or last is None:
            return own
        return [*await self._read_path(connection, ref.model_copy(update={"index": left}), last + 1), *own]


async def _read_ids(connection: AsyncConnection, ref: TrajectoryRef, which: ColumnElement[bool]) -> list[int]:
    segments = select(Segment.token_ids).where(*_is(Segment, ref), which).order_by(Segment.turn, Segment.seq)
    return [token for data in await connection.scalars(segments) for token in decode_ids(data)]


async def _read_turn(connection: AsyncConnection, ref: TrajectoryRef, turn: int) -> StoredTurn:
    columns = select(Segment.kind, Segment.token_ids, Segment.version, Segment.end)
    query = columns.where(*_is(Segment, ref), Segment.turn == turn).order_by(Segment.seq)
    stored = StoredTurn()
    for kind, token_ids, version, end in await connection.execute(query):
        stored.segments += 1
        if kind == SegmentKind.SAMPLED:
            stored.token_ids += decode_ids(token_ids)
            stored.version = version
            stored.end = None if end is None else SegmentEnd(end)
    return stored


def _is(table: type[Trajectory] | type[Turn] | type[Segment], ref: TrajectoryRef):  # type: ignore[no-untyped-def]
    return table.run_id == ref.run_id, table.group_id == ref.group_id, table.index == ref.index


def _name(ref: TrajectoryRef) -> str:
    return f"trajectory {ref.run_id}/{ref.group_id}/{ref.index}"
