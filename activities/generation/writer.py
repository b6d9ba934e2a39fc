"""Stores segments of all concurrent generate calls, many in one transaction.

Promises: `write` returns when the row is committed; a row is stored only while its attempt owns the trajectory, checked
in the statement that stores it; one refused row does not harm the others; a row whose commit was not acknowledged is
not stored twice; a refused row whose caller is gone (its activity was cancelled meanwhile) is counted here, the others
by `TurnStore.refusal`. A database that is away is waited for (`patience.py`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import errors
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.errors import InvariantViolated
from ...schemas.ids import GroupId, RunId
from ...schemas.status import SegmentKind, TrajectoryStatus
from ...schemas.tables import Run
from ..store.connections import one_statement_each
from ..store.literals import listed
from .patience import patiently

log = logging.getLogger(__name__)

MAX_ROWS = 512

COLUMNS: dict[str, tuple[str, str]] = {
    "run_id": ("text", "s"),
    "group_id": ("text", "s"),
    "index": ("int", "s"),
    "turn": ("int", "s"),
    "seq": ("int", "s"),
    "fence": ("bigint", "s"),
    "claims": ("bool", "s"),
    "version": ("int", "s"),
    "instance": ("text", "s"),
    "tokens": ("int", "s"),
    "token_ids": ("bytea", "b"),
    "logprobs": ("bytea", "b"),
    "kv_kept": ("bool", "s"),
    "end": ("text", "s"),
    "started_at": ("float8", "s"),
    "finished_at": ("float8", "s"),
}
"""Name to PostgreSQL type and parameter format (binary for bytes: half the size of the text form)."""


Key = tuple[RunId, GroupId, int, int]
"""An attempt has at most one row at a time in the writer."""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment of sampled tokens."""

    run_id: RunId
    group_id: GroupId
    index: int
    turn: int
    seq: int
    fence: int
    claims: bool
    """True: the attempt takes the trajectory with this row. False: it owned the trajectory before."""
    version: int
    instance: str
    tokens: int
    token_ids: bytes
    logprobs: bytes
    end: str | None
    """Given on the last row of the turn: finishes the turn, and the trajectory with it."""
    started_at: float
    finished_at: float
    """Seconds of the wall clock."""
    kv_kept: bool | None = None
    """Of a segment that continues an interrupted one: whether the engine kept the KV cache of the tokens before."""

    @property
    def key(self) -> Key:
        return self.run_id, self.group_id, self.index, self.fence


PENDING, FINISHED = listed(TrajectoryStatus.PENDING), listed(TrajectoryStatus.FINISHED)
SAMPLED = listed(SegmentKind.SAMPLED)

STORE_ROWS = f"""
WITH rows AS (
    SELECT * FROM unnest({", ".join(f"%({name}){form}::{kind}[]" for name, (kind, form) in COLUMNS.items())})
        AS r ({", ".join(f'"{name}"' for name in COLUMNS)})
), owned AS (
    UPDATE trajectories t
    SET fence = r.fence, tokens = t.tokens + r.tokens,
        status = CASE WHEN r."end" IS NOT NULL AND t.status = {PENDING} THEN {FINISHED} ELSE t.status END,
        finished_at = CASE WHEN r."end" IS NULL THEN t.finished_at ELSE to_timestamp(r.finished_at) END
    FROM rows r
    WHERE t.run_id = r.run_id AND t.group_id = r.group_id AND t.index = r.index
        AND CASE WHEN r.claims THEN t.fence < r.fence ELSE t.fence = r.fence END
    RETURNING t.run_id, t.group_id, t.index, t.fence
), accepted AS (
    SELECT r.* FROM rows r JOIN owned USING (run_id, group_id, index, fence)
), turn AS (
    INSERT INTO turns AS stored (run_id, group_id, index, turn, tokens, "end", started_at, finished_at)
    SELECT run_id, group_id, index, turn, tokens, "end", to_timestamp(started_at),
           CASE WHEN "end" IS NOT NULL THEN to_timestamp(finished_at) END
    FROM accepted
    ON CONFLICT (run_id, group_id, index, turn) DO UPDATE
    SET tokens = stored.tokens + excluded.tokens, "end" = coalesce(excluded."end", stored."end"),
        finished_at = coalesce(excluded.finished_at, stored.finished_at)
)
INSERT INTO segments (run_id, group_id, index, turn, seq, kind, fence, version, instance, tokens, token_ids, logprobs,
                      kv_kept, "end", started_at, finished_at)
SELECT run_id, group_id, index, turn, seq, {SAMPLED}, fence, version, instance, tokens, token_ids, logprobs,
       kv_kept, "end", to_timestamp(started_at), to_timestamp(finished_at)
FROM accepted
RETURNING run_id, group_id, index, fence
"""
"""The fence is part of the join: one batch may hold rows of an old and of a new attempt at the same trajectory."""

STORED_BEFORE = """
SELECT 1 FROM segments WHERE run_id = %(run_id)s AND group_id = %(group_id)s AND index = %(index)s
    AND turn = %(turn)s AND seq = %(seq)s AND fence = %(fence)s AND token_ids = %(token_ids)b
"""


class Refused(Exception):
    """The attempt does not own the trajectory (any more)."""


class SegmentWriter:
    def __init__(self, store: AsyncEngine) -> None:
        self._store, self._rows = store, one_statement_each(store)
        self._waiting: list[tuple[SegmentRow, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def write(self, row: SegmentRow) -> None:
        """Raises `Refused`, or `Unreachable` when the database stays away."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, done))
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        await done

    async def close(self) -> None:
        """Returns when every accepted row is settled."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        try:
            while self._waiting:
                # Rows of requests that the same engine step has ended come along; later ones gather meanwhile.
                await asyncio.sleep(0)
                batch, self._waiting = self._waiting[:MAX_ROWS], self._waiting[MAX_ROWS:]
                await self._settle(batch)
        finally:
            self._task = None

    async def _settle(self, batch: list[tuple[SegmentRow, asyncio.Future[None]]]) -> None:
        """Every future gets its answer, whatever happens."""
        rows = [row for row, _ in batch]
        try:
            refused = await patiently(lambda repeated: self._store_all(rows, repeated), f"{len(rows)} segments")
        except Exception as error:  # noqa: BLE001 - the callers own the error, this task serves all of them
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        unheard: Counter[RunId] = Counter()
        for row, done in batch:
            if done.done():
                unheard[row.run_id] += row.key in refused
            elif row.key in refused:
                done.set_exception(Refused())
            else:
                done.set_result(None)
        await self._count(+unheard)

    async def _count(self, refused: Counter[RunId]) -> None:
        """Best effort, once: a count that was repeated might be too high, and nobody's tokens depend on it."""
        if not refused:
            return
        try:
            async with self._store.begin() as connection:
                for run, rows in refused.items():
                    more = update(Run).where(Run.run_id == run).values(refused_results=Run.refused_results + rows)
                    await connection.execute(more)
        except SQLAlchemyError as error:
            log.warning("refused rows were not counted: %s: %r", dict(refused), error)

    async def _store_all(self, rows: list[SegmentRow], retried: bool) -> set[Key]:
        """Keys of refused rows. A retried row may have been stored by a commit that was not acknowledged."""
        try:
            stored = await self._insert(rows)
        except IntegrityError:
            # Two holders of one fencing number (a workflow was reset): find out which row it is.
            stored = set()
            for row in rows:
                stored |= await self._insert_one(row)
        refused = [row for row in rows if row.key not in stored]
        return {row.key for row in refused if not (retried and await self._stored_before(row))}

    async def _insert_one(self, row: SegmentRow) -> set[Key]:
        try:
            return await self._insert([row])
        except IntegrityError as error:
            if not isinstance(error.orig, errors.UniqueViolation):
                raise InvariantViolated(f"segment {row.key} was refused by the store: {error.orig}") from error
            return set()

    async def _insert(self, rows: list[SegmentRow]) -> set[Key]:
        values: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
        async with self._rows.connect() as connection:
            result = await connection.exec_driver_sql(STORE_ROWS, values)
            stored: Sequence[Any] = result.all()
            return {(RunId(run), GroupId(group), index, fence) for run, group, index, fence in stored}

    async def _stored_before(self, row: SegmentRow) -> bool:
        values = {name: getattr(row, name) for name in ("run_id", "group_id", "index", "turn", "seq", "fence")}
        async with self._rows.connect() as connection:
            found = await connection.exec_driver_sql(STORED_BEFORE, {**values, "token_ids": row.token_ids})
            return found.scalar() is not None
