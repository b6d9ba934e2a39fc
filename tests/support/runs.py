"""A run in the store, brought by the real activities to the point where a test begins."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.data.admit import Admit
from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.draw import Draw
from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.schemas.ids import GroupId, RunId
from psrl.schemas.messages.data import Admission, AdmitRequest, DrawRequest
from psrl.schemas.messages.rollout import SegmentEnd
from psrl.schemas.status import SegmentKind
from psrl.schemas.tables import Segment, Trajectory, Turn

RUN = RunId("run-1")
CHARACTER_BASE = 6
"""The tiny tokenizer has six special tokens, then the newline, then the printable characters."""


def ids_of(text: str) -> list[int]:
    """How the tiny tokenizer spells printable text."""
    return [CHARACTER_BASE + 1 + ord(character) - 0x20 for character in text]


def write_jsonl(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def sums(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Rows as people have them."""
    return [
        {
            "prompt": [{"role": "user", "content": f"{number}+1="}],
            "data_source": "sums",
            "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
            "extra_info": {"number": number},
        }
        for number in range(first, first + count)
    ]


def config_values(model: Path, train: Path, /, **overrides: Any) -> dict[str, Any]:
    """A raw configuration; `overrides` replace whole sections' keys: `psrl={"staleness": 2}`."""
    values: dict[str, dict[str, Any]] = {
        "model": {"path": str(model)},
        "data": {"train_files": [str(train)], "max_prompt_length": 20, "max_response_length": 20},
        "psrl": {"staleness": 1, "staleness_buffer_entries": 2, "rollout_n": 2},
        "reward": {"function": "tests.support.rewards:length"},
    }
    for section, keys in overrides.items():
        values[section] = {**values.get(section, {}), **keys}
    return values


async def admit(engine: AsyncEngine, values: dict[str, Any], run_id: RunId = RUN) -> Admission:
    request = AdmitRequest(run_id=run_id, config=values, workflow_run_id="first")
    return await Admit(engine, DatasetCache(), None).admit_run(request)


async def draw(engine: AsyncEngine, tags: Sequence[int], trajectories: int = 2, first: int = 0) -> tuple[GroupId, ...]:
    places = tuple(range(first, first + len(tags)))
    request = DrawRequest(run_id=RUN, first=first, tags=tuple(tags), places=places, trajectories=trajectories)
    return (await Draw(engine, DatasetCache()).draw_groups(request)).groups


async def add_segment(
    engine: AsyncEngine, group: GroupId, index: int, text: str, *, version: int = 0, seq: int = 0, turn: int = 0
) -> None:
    now = datetime.now(UTC)
    ids = ids_of(text)
    key = {"run_id": RUN, "group_id": group, "index": index, "turn": turn}
    row = {
        **{**key, "seq": seq, "fence": 1},
        **{"version": version, "instance": "rollout-0", "tokens": len(ids), "token_ids": encode_ids(ids)},
        **{"logprobs": encode_logprobs([-1.0] * len(ids)), "started_at": now, "finished_at": now},
    }
    longer = {"tokens": Turn.tokens + len(ids), "end": SegmentEnd.STOP.value, "finished_at": now}
    turn_row = {**key, "tokens": len(ids), "end": SegmentEnd.STOP.value, "started_at": now, "finished_at": now}
    of_turn = [Turn.run_id, Turn.group_id, Turn.index, Turn.turn]
    async with engine.begin() as connection:
        await connection.execute(
            insert(Turn).values(turn_row).on_conflict_do_update(index_elements=of_turn, set_=longer)
        )
        await connection.execute(insert(Segment).values(row))


async def add_environment(engine: AsyncEngine, group: GroupId, index: int, text: str, *, turn: int) -> None:
    """What the environment says at the beginning of a turn."""
    now = datetime.now(UTC)
    key = {"run_id": RUN, "group_id": group, "index": index, "turn": turn}
    ids = ids_of(text)
    row = {**key, "seq": 0, "kind": SegmentKind.ENVIRONMENT, "fence": 1, "tokens": len(ids)}
    async with engine.begin() as connection:
        await connection.execute(insert(Turn).values({**key, "started_at": now}))
        row |= {"token_ids": encode_ids(ids), "started_at": now, "finished_at": now}
        await connection.execute(insert(Segment).values(row))


async def finish(engine: AsyncEngine, group: GroupId, index: int, text: str, version: int = 0, *, seq: int = 0) -> None:
    """The trajectory's one turn is complete."""
    await add_segment(engine, group, index, text, version=version, seq=seq)
    await set_trajectory(engine, group, index, status="finished", tokens=len(text), finished_at=func.now())


async def finish_scored(
    engine: AsyncEngine, group: GroupId, index: int, reward: float, *, text: str = "ab", version: int = 0, seq: int = 0
) -> None:
    await finish(engine, group, index, text, version=version, seq=seq)
    await set_trajectory(engine, group, index, status="scored", reward=reward, scored_at=func.clock_timestamp())


async def set_trajectory(engine: AsyncEngine, group: GroupId, index: int, **values: Any) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            update(Trajectory)
            .where(Trajectory.run_id == RUN, Trajectory.group_id == group, Trajectory.index == index)
            .values(**values)
        )
