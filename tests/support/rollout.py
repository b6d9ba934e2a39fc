"""A rollout host with a scripted engine and what it needs in the store."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.generation.turns import TurnStore
from psrl.activities.generation.writer import SegmentWriter
from psrl.activities.store.codec import decode_ids, decode_logprobs, encode_ids
from psrl.activities.weights.transport import Lease
from psrl.schemas.config import ModelSection, RolloutDtype, RolloutSection
from psrl.schemas.errors import WeightsRefused
from psrl.schemas.ids import GroupId, InstanceId, RunId, Version
from psrl.schemas.messages.rollout import CalledTurn, EngineSpec, GenerateRequest, Sampling, TrajectoryRef, TurnRequest
from psrl.schemas.tables import Group, Run, Segment, Trajectory, Turn
from psrl.schemas.weights import WeightManifest
from psrl.workers.rollout.calls import Calls
from psrl.workers.rollout.generate import Generator
from psrl.workers.rollout.host import Host
from tests.support.scripted_engine import Script, ScriptedEngine, scripted_probe

RUN = RunId("run-1")
GROUP = GroupId("000000")
INSTANCE = InstanceId("rollout-0")
PROMPT = [10, 11, 12]
SPEC = EngineSpec(
    run_id=RUN,
    model=ModelSection(path="model"),
    rollout=RolloutSection(dtype=RolloutDtype.FP32, kv_cache_gb=0.016),
    context_tokens=64,
    max_num_seqs=8,
    flush_tokens=4,
    flush_interval_s=60.0,
    seed=0,
)


def with_engine(spec: EngineSpec, **options: Any) -> EngineSpec:
    """The same with other keys of `rollout.*`; one that does not exist is refused."""
    rollout = RolloutSection.model_validate({**spec.rollout.model_dump(), **options})
    return spec.model_copy(update={"rollout": rollout})


class ScriptedWeights:
    """Every version is published; tensors are empty."""

    def __init__(self) -> None:
        self.damaged: set[int] = set()
        self.fetched: list[int] = []
        self.ended: list[int] = []
        """Versions whose lease is over."""

    async def lease(self, run_id: RunId, version: Version) -> Lease:
        self.fetched.append(version)
        if version in self.damaged:
            raise WeightsRefused(f"scripted: shard of version {version} is damaged")
        probe = scripted_probe(version)
        manifest = WeightManifest(run_id=run_id, version=version, transport="t", uri="u", shards=(), probe=probe)
        return Lease(manifest, {}, release=lambda: self.ended.append(version))


@dataclass
class Bench:
    """One host, its engines in the order in which they were made, and a store."""

    host: Host
    generator: Generator
    calls: Calls
    weights: ScriptedWeights
    engines: list[ScriptedEngine] = field(default_factory=list)

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[-1]

    async def serve(self, version: int = 0) -> None:
        await self.host.start(SPEC)
        await self.sync(version)

    async def sync(self, version: int) -> None:
        await self.host.pause(RUN, interrupt=True)
        await self.host.pull(RUN, Version(version))
        await self.host.resume(RUN)


def make_host(script: Script) -> tuple[Host, ScriptedWeights, list[ScriptedEngine]]:
    engines: list[ScriptedEngine] = []

    def make() -> ScriptedEngine:
        engines.append(ScriptedEngine(script))
        return engines[-1]

    weights = ScriptedWeights()
    return Host(INSTANCE, make, weights), weights, engines


def make_bench(store: AsyncEngine, script: Script) -> Bench:
    host, weights, engines = make_host(script)
    generator = Generator(host, TurnStore(store), SegmentWriter(store))
    return Bench(host, generator, Calls(INSTANCE, generator), weights, engines)


def call(index: int = 0, number: int = 0, max_tokens: int = 10, tag: int = 0, **sampling: Any) -> TurnRequest:
    return TurnRequest(
        trajectory=TrajectoryRef(run_id=RUN, group_id=GROUP, index=index),
        call=number,
        version_tag=tag,
        sampling=Sampling(temperature=1.0, max_tokens=max_tokens, **sampling),
    )


def group_call(*turns: TurnRequest, enough: int | None = None, one_by_one: bool = False) -> GenerateRequest:
    """One generate call of turns that differ in nothing but index and number."""
    first = turns[0]
    return GenerateRequest(
        run_id=first.trajectory.run_id,
        group_id=first.trajectory.group_id,
        turns=tuple(
            CalledTurn(index=turn.trajectory.index, turn=turn.turn, call=turn.call, seed=turn.sampling.seed)
            for turn in turns
        ),
        version_tag=first.version_tag,
        sampling=first.sampling,
        enough=len(turns) if enough is None else enough,
        one_by_one=one_by_one,
        one_version=first.one_version,
    )


async def add_group(
    store: AsyncEngine,
    trajectories: int = 2,
    prompt: Sequence[int] = PROMPT,
    group: GroupId = GROUP,
    run: RunId = RUN,
) -> None:
    row = {"run_id": run, "group_id": group}
    async with store.begin() as connection:
        if await connection.scalar(select(Run.run_id).where(Run.run_id == run)) is None:
            empty = {"config": {}, "total_steps": 1, "prompts": 1, "skipped_too_long": 0, "data_fingerprint": ""}
            await connection.execute(insert(Run), {"run_id": run, "workflow_run_id": "w", "phase": "running", **empty})
        await connection.execute(
            insert(Group),
            {
                **row,
                **{"purpose": "train", "epoch": 0, "position": 0, "row": 0, "version_tag": 0, "extra": {}},
                **{"prompt_ids": encode_ids(prompt), "prompt_text": "", "data_source": "", "ground_truth": None},
            },
        )
        if rows := [{**row, "index": index} for index in range(trajectories)]:
            await connection.execute(insert(Trajectory), rows)


@dataclass(frozen=True)
class Stored:
    """One segment as it is in the store."""

    seq: int
    version: int
    fence: int
    ids: list[int]
    logprobs: list[float]
    end: str | None
    started_at: datetime
    finished_at: datetime


async def stored_segments(store: AsyncEngine, index: int = 0, group: GroupId = GROUP) -> list[Stored]:
    query = (
        select(Segment)
        .where(Segment.run_id == RUN, Segment.group_id == group, Segment.index == index)
        .order_by(Segment.turn, Segment.seq)
    )
    async with store.connect() as connection:
        rows = (await connection.execute(query)).all()
    return [
        Stored(
            row.seq,
            row.version,
            row.fence,
            decode_ids(row.token_ids),
            decode_logprobs(row.logprobs or b""),
            row.end,
            row.started_at,
            row.finished_at,
        )
        for row in rows
    ]


def ids_of(segments: Iterable[Stored]) -> list[int]:
    return [token for segment in segments for token in segment.ids]


async def stored_trajectory(store: AsyncEngine, index: int = 0, group: GroupId = GROUP) -> Any:
    async with store.connect() as connection:
        query = select(Trajectory).where(
            Trajectory.run_id == RUN, Trajectory.group_id == group, Trajectory.index == index
        )
        return (await connection.execute(query)).one()


async def stored_turns(store: AsyncEngine, index: int = 0, group: GroupId = GROUP) -> list[Any]:
    where = (Turn.run_id == RUN, Turn.group_id == group, Turn.index == index)
    async with store.connect() as connection:
        return list((await connection.execute(select(Turn).where(*where).order_by(Turn.turn))).all())


async def refused_results(store: AsyncEngine) -> int:
    async with store.connect() as connection:
        return int(await connection.scalar(select(Run.refused_results).where(Run.run_id == RUN)) or 0)


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """For facts in the database, which wakes nobody."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - PostgreSQL has no event to wait for
            await asyncio.sleep(0.01)
