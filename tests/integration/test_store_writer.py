"""The writer alone: whose rows are stored, whatever comes together in one transaction (L8)."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.generation.writer import Refused, SegmentRow, SegmentWriter
from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.schemas.errors import InvariantViolated
from tests.support.rollout import (
    GROUP,
    INSTANCE,
    RUN,
    add_group,
    ids_of,
    stored_segments,
    stored_trajectory,
    stored_turns,
)

pytestmark = pytest.mark.integration

ROW = SegmentRow(
    run_id=RUN,
    group_id=GROUP,
    index=0,
    turn=0,
    seq=0,
    fence=5,
    claims=True,
    version=1,
    instance=INSTANCE,
    tokens=2,
    token_ids=encode_ids([7, 8]),
    logprobs=encode_logprobs([-0.5, -0.25]),
    end=None,
    started_at=10.0,
    finished_at=11.0,
)


def row(fence: int, seq: int, *ids: int, claims: bool = False, end: str | None = None, index: int = 0) -> SegmentRow:
    content = {"tokens": len(ids), "token_ids": encode_ids(ids), "logprobs": encode_logprobs([-0.5] * len(ids))}
    return replace(ROW, fence=fence, seq=seq, claims=claims, end=end, index=index, **content)


@pytest.fixture
async def writer(store: AsyncEngine) -> SegmentWriter:
    await add_group(store)
    return SegmentWriter(store)


async def write(writer: SegmentWriter, *rows: SegmentRow) -> list[type[BaseException] | None]:
    """Of each row that comes in at the same time, how it was refused."""
    answers = await asyncio.gather(*(writer.write(one) for one in rows), return_exceptions=True)
    return [None if answer is None else type(answer) for answer in answers]


@pytest.mark.parametrize(
    ("second", "refused"),
    [
        (row(5, 1, 9), False),
        (row(4, 1, 9), True),
        (row(6, 1, 9), True),
        (row(4, 1, 9, claims=True), True),
        (row(5, 1, 9, claims=True), True),
        (row(6, 1, 9, claims=True), False),
    ],
    ids=[
        "the owner",
        "an older one",
        "a newer one unclaimed",
        "an older claim",
        "its own claim again",
        "a newer claim",
    ],
)
async def test_a_row_is_stored_only_for_the_owner_or_a_newer_claim(
    writer: SegmentWriter, store: AsyncEngine, second: SegmentRow, refused: bool
) -> None:
    assert await write(writer, ROW) == [None]
    assert await write(writer, second) == [Refused if refused else None]
    assert ids_of(await stored_segments(store)) == ([7, 8] if refused else [7, 8, 9])
    trajectory = await stored_trajectory(store)
    assert (trajectory.tokens, trajectory.fence) == ((2, 5) if refused else (3, second.fence))
    assert [turn.tokens for turn in await stored_turns(store)] == [trajectory.tokens]


@pytest.mark.parametrize("order", [1, -1])
async def test_of_two_attempts_in_one_transaction_only_one_stores(
    writer: SegmentWriter, store: AsyncEngine, order: int
) -> None:
    """Both hold what the statement asks for: the one owns the trajectory, the other claims it."""
    await write(writer, ROW)
    old, new = row(5, 1, 9), row(6, 2, 9, claims=True)
    answers = await write(writer, *(old, new)[::order])
    assert sorted(answer is None for answer in answers) == [False, True], answers
    stored = await stored_segments(store)
    trajectory = await stored_trajectory(store)
    assert [segment.fence for segment in stored] == [5, trajectory.fence]
    assert (len(stored), trajectory.tokens) == (2, 3)


async def test_a_refused_row_changes_nothing_of_its_siblings_in_the_same_transaction(
    writer: SegmentWriter, store: AsyncEngine
) -> None:
    await write(writer, ROW, row(3, 0, 4, claims=True, index=1))
    answers = await write(writer, row(4, 1, 9, 9, 9), row(3, 1, 5, 6, end="stop", index=1))
    assert answers == [Refused, None]
    assert ids_of(await stored_segments(store, 0)) == [7, 8]
    assert ids_of(await stored_segments(store, 1)) == [4, 5, 6]
    assert [(turn.tokens, turn.end) for turn in await stored_turns(store, 1)] == [(3, "stop")]
    assert [(turn.tokens, turn.end) for turn in await stored_turns(store, 0)] == [(2, None)]


async def test_a_place_that_is_taken_refuses_the_row_and_no_other(writer: SegmentWriter, store: AsyncEngine) -> None:
    """Two holders of one fencing number, after a workflow was reset."""
    await write(writer, ROW)
    answers = await write(writer, row(5, 0, 9), row(1, 0, 4, claims=True, index=1))
    assert answers == [Refused, None]
    assert ids_of(await stored_segments(store, 0)) == [7, 8]
    assert ids_of(await stored_segments(store, 1)) == [4]


async def test_a_row_that_the_database_takes_for_damaged_is_an_error_and_no_refusal(
    writer: SegmentWriter, store: AsyncEngine
) -> None:
    damaged = replace(ROW, tokens=3)
    with pytest.raises(InvariantViolated, match=r"was refused by the store: .*ids_match_count"):
        await writer.write(damaged)
    assert await stored_segments(store) == []
    assert await stored_turns(store) == []
    assert (await stored_trajectory(store)).tokens == 0


async def test_more_rows_than_one_statement_takes_are_stored_in_several(
    writer: SegmentWriter, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psrl.activities.generation.writer.MAX_ROWS", 1)
    assert await write(writer, ROW, row(3, 0, 4, claims=True, index=1)) == [None, None]
    assert [len(await stored_segments(store, index)) for index in (0, 1)] == [1, 1]


async def test_the_end_of_a_turn_finishes_it_once_and_its_trajectory(writer: SegmentWriter, store: AsyncEngine) -> None:
    await write(writer, ROW)
    assert (await stored_trajectory(store)).status == "pending"
    await write(writer, replace(row(5, 1, 9, end="length"), started_at=20.0, finished_at=21.0, kv_kept=True))
    [turn] = await stored_turns(store)
    assert (turn.started_at.timestamp(), turn.finished_at.timestamp(), turn.end) == (10.0, 21.0, "length")
    trajectory = await stored_trajectory(store)
    assert (trajectory.status, trajectory.finished_at) == ("finished", turn.finished_at)
    async with store.connect() as connection:
        kept = await connection.scalars(text("SELECT kv_kept FROM segments ORDER BY seq"))
        assert list(kept) == [None, True]


async def test_close_returns_when_every_row_is_settled(writer: SegmentWriter, store: AsyncEngine) -> None:
    pending = asyncio.create_task(writer.write(ROW))
    await asyncio.sleep(0)
    await writer.close()
    await pending
    assert len(await stored_segments(store)) == 1
