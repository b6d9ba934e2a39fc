"""Drawing: the next prompts become groups in the store, each with its empty trajectories."""

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import TextClause, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from temporalio import activity

from ...schemas.config import RunConfig
from ...schemas.config.agentic import AgentLoop
from ...schemas.errors import InvariantViolated
from ...schemas.ids import GroupId, RunId, Version, training_group, validation_group
from ...schemas.messages.data import DrawRequest, DrawResult, DrawValidationRequest, Purpose
from ...schemas.messages.rewards import PROMPT_MESSAGES
from ...schemas.tables import Group
from ..boundary import boundary
from ..heartbeat import heartbeating
from ..store.runs import AdmittedRun, AdmittedRuns
from .dataset import Dataset, DatasetCache, Prompt
from .order import Place, place_of

INSERT_TRAJECTORIES: TextClause = text(
    """
    INSERT INTO trajectories (run_id, group_id, index)
    SELECT :run, drawn.id, member.index
    FROM unnest(CAST(:groups AS text[])) AS drawn (id), generate_series(0, :count - 1) AS member (index)
    ON CONFLICT DO NOTHING
    """
)


class Draw:
    def __init__(self, store: AsyncEngine, datasets: DatasetCache) -> None:
        self._store = store
        self._datasets = datasets
        self._runs = AdmittedRuns()

    @activity.defn(name="draw_groups")
    @boundary
    async def draw_groups(self, request: DrawRequest) -> DrawResult:
        """Idempotent by group id. Raises `DataError` when the files changed since the run was admitted."""
        run, dataset = await self._open(request.run_id)
        data = run.config.data
        rows: list[dict[str, Any]] = []
        drawn = zip(request.tags, request.places, strict=True)
        for number, (tag, at) in enumerate(drawn, start=request.first):
            place = place_of(at, len(dataset.train), data.shuffle, data.seed)
            prompt = dataset.train[place.prompt]
            key = {"run_id": request.run_id, "group_id": training_group(number), "version_tag": tag}
            rows.append({**key, "purpose": Purpose.TRAIN.value, **_prompt_columns(run.config, place, prompt)})
        async with heartbeating(), self._store.begin() as connection:
            return await _insert(connection, request.run_id, rows, request.trajectories)

    @activity.defn(name="draw_validation")
    @boundary
    async def draw_validation(self, request: DrawValidationRequest) -> DrawResult:
        """Every validation prompt once, tagged with the version it measures."""
        run, dataset = await self._open(request.run_id)
        version = Version(request.version)
        rows: list[dict[str, Any]] = []
        for number, prompt in enumerate(dataset.validation):
            place = Place(epoch=0, position=number, prompt=number)
            key = {"run_id": request.run_id, "group_id": validation_group(version, number), "version_tag": version}
            rows.append({**key, "purpose": Purpose.VALIDATION.value, **_prompt_columns(run.config, place, prompt)})
        async with heartbeating(), self._store.begin() as connection:
            return await _insert(connection, request.run_id, rows, request.trajectories)

    async def _open(self, run_id: RunId) -> tuple[AdmittedRun, Dataset]:
        async with self._store.connect() as connection:
            run = await self._runs.get(connection, run_id)
        # Loads only after this process was restarted; otherwise the data set is in memory.
        async with heartbeating():
            dataset = await asyncio.to_thread(self._datasets.admitted, run.config, run.data_fingerprint)
        return run, dataset


def _prompt_columns(config: RunConfig, place: Place, prompt: Prompt) -> dict[str, Any]:
    """What an agent says first is its own affair: of the data's prompt its group has the text, for people, the agent
    and the reward."""
    spoken_by_agent = config.psrl.agentic_rl.agent_loop is AgentLoop.SESSION
    return {
        "epoch": place.epoch,
        "position": place.position,
        "row": prompt.row,
        "prompt_ids": b"" if spoken_by_agent else prompt.ids,
        "prompt_text": prompt.text,
        "data_source": prompt.data_source,
        "ground_truth": prompt.ground_truth,
        "extra": prompt.extra if prompt.messages is None else {**prompt.extra, PROMPT_MESSAGES: prompt.messages},
    }


async def _insert(
    connection: AsyncConnection, run_id: RunId, rows: list[dict[str, Any]], trajectories: int
) -> DrawResult:
    """All or nothing: a group is never seen without its trajectories."""
    groups = tuple(GroupId(row["group_id"]) for row in rows)
    if rows:
        await connection.execute(insert(Group).on_conflict_do_nothing(), rows)
        await _check_tags(connection, run_id, rows)
        await connection.execute(INSERT_TRAJECTORIES, {"run": run_id, "groups": list(groups), "count": trajectories})
    return DrawResult(groups=groups)


async def _check_tags(connection: AsyncConnection, run_id: RunId, rows: Sequence[dict[str, Any]]) -> None:
    """A group that an earlier attempt wrote must be the same group: a tag is fixed when its slot is reserved."""
    wanted = {row["group_id"]: row["version_tag"] for row in rows}
    query = select(Group.group_id, Group.version_tag).where(Group.run_id == run_id, Group.group_id.in_(wanted))
    for group_id, tag in await connection.execute(query):
        if tag != wanted[group_id]:
            raise InvariantViolated(
                f"group {group_id} of run {run_id} was drawn with version tag {tag}, now with {wanted[group_id]}"
            )
