"""Where an ended run is resumed, read from the store (L12: what was trained on decides, not what was drawn).

Promises: nothing is written, so the call may be repeated; a prompt that was trained on is not drawn again in its epoch;
a prompt whose group the end of the run cut short is drawn again; a group that was complete is kept and not generated
again; a batch that was recorded, but whose step was not, comes first and unchanged.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, TextClause, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from temporalio import activity

from ...schemas.config import RunConfig, parse_config
from ...schemas.errors import DataError, NothingToResume, RunUnknown
from ...schemas.ids import GroupId, RunId
from ...schemas.messages.data import Admission, KeptGroup, Purpose, Restored, RestoreRequest
from ...schemas.messages.rewards import Verdict
from ...schemas.messages.run import RunPhase
from ...schemas.status import GROUP_EXITS, GroupStatus, TrajectoryStatus
from ...schemas.tables import Run
from ..boundary import boundary
from ..environments.load import environment_notes
from ..filters.registry import filter_name
from ..filters.scored import read_scored_groups
from ..filters.verdict import Verdicts
from ..heartbeat import heartbeating
from ..store.literals import listed
from .admit import Checked, admission_of, check_parts, check_reward_rows, total_steps
from .dataset import DatasetCache, fingerprint

STEPS = text("SELECT count(*), max(buffer) FROM step_metrics WHERE run_id = :run")

OPEN_BATCH = text(
    """
    SELECT m.group_id FROM batch_members m
    WHERE m.run_id = :run AND m.buffer = :buffer GROUP BY m.group_id ORDER BY m.group_id
    """
)

TRAINING = f"run_id = :run AND purpose = {listed(Purpose.TRAIN)}"

LEFT_BEHIND = text(
    f"""
    SELECT group_id, version_tag, epoch, position FROM groups
    WHERE {TRAINING} AND status = {listed(GroupStatus.LIVE)} ORDER BY group_id
    """
)

SCORED = text(
    f"""
    SELECT group_id
    FROM (
        SELECT group_id, scored_at, row_number() OVER (PARTITION BY group_id ORDER BY scored_at, index) AS nth
        FROM trajectories
        WHERE run_id = :run AND group_id = ANY(:groups) AND status = {listed(TrajectoryStatus.SCORED)}
            AND reward IS NOT NULL AND index < :episodes
    ) scored
    WHERE nth <= :needed GROUP BY group_id HAVING count(*) = :needed ORDER BY max(scored_at), group_id
    """
)
"""Groups of which N episodes are scored, in order of completion."""

CUT_SHORT = text(
    f"""
    SELECT epoch, position FROM groups WHERE {TRAINING}
    GROUP BY epoch, position HAVING bool_and(status = {listed(GroupStatus.ABORTED)}) ORDER BY epoch, position
    """
)

NEWEST_GROUP = text(
    f"""
    SELECT group_id FROM groups WHERE {TRAINING}
    ORDER BY length(group_id) DESC, group_id DESC LIMIT 1
    """
)

FARTHEST = text(
    f"""
    SELECT epoch, position FROM groups WHERE {TRAINING}
    ORDER BY epoch DESC, position DESC LIMIT 1
    """
)

LEFT: TextClause = text(
    f"""
    SELECT status, count(*) FROM groups
    WHERE {TRAINING} AND status IN ({listed(*GROUP_EXITS)}) GROUP BY status ORDER BY status
    """
)

LAST_REWARD = text(
    "SELECT metrics->'batch'->>'reward_mean' FROM step_metrics WHERE run_id = :run ORDER BY buffer DESC LIMIT 1"
)


class Restore:
    def __init__(
        self, store: AsyncEngine, datasets: DatasetCache, instances: int | None, gateway: str | None = None
    ) -> None:
        self._store, self._datasets, self._instances, self._gateway = store, datasets, instances, gateway

    @activity.defn(name="restore_run")
    @boundary
    async def restore_run(self, request: RestoreRequest) -> Restored:
        """Raises `RunUnknown`, `NothingToResume`, and what admission raises for files that are no longer usable."""
        async with self._store.connect() as connection:
            run = await _run(connection, request.run_id)
        async with heartbeating():
            checked = await asyncio.to_thread(self._check, run, request.accept_changed_data)
            changed = checked.dataset.fingerprint != run.data_fingerprint
            async with self._store.connect() as connection:
                return await _restored(connection, run, admission_of(checked), changed)

    def _check(self, run: Row[Any], accept_changed_data: bool) -> Checked:
        config = parse_config(run.config)
        rewards, tools = check_parts(config, self._instances, self._gateway)
        changed = fingerprint(config, tools) != run.data_fingerprint
        if changed and not accept_changed_data:
            raise DataError(
                f"the data files of run {run.run_id!r} have changed since it was admitted (data.train_files, "
                f"data.val_files or the tokenizer of model.path): its position in the data would mean other prompts. "
                f"Restore them, or `psrl resume {run.run_id} --accept-changed-data`: a new epoch begins then"
            )
        dataset = self._datasets.load(config, tools)
        check_reward_rows(rewards, dataset)
        steps = total_steps(config, len(dataset.train)) if changed else run.total_steps
        return Checked(config, dataset, steps, rewards, environment_notes(config))


async def _run(connection: AsyncConnection, run_id: RunId) -> Row[Any]:
    row = (await connection.execute(select(Run.__table__).where(Run.run_id == run_id))).one_or_none()
    if row is None:
        raise RunUnknown(f"run {run_id!r} is not in the store; `psrl status` lists the runs that are")
    if row.phase == RunPhase.DONE:
        raise NothingToResume(f"run {run_id!r} is done: all {row.total_steps} steps were trained")
    return row


async def _restored(connection: AsyncConnection, run: Row[Any], admission: Admission, changed: bool) -> Restored:
    key = {"run": run.run_id}
    steps, last = (await connection.execute(STEPS, key)).one()
    version = 0 if last is None else last + 1
    if steps != version or version >= admission.total_steps:
        raise NothingToResume(
            f"run {run.run_id!r} has trained {steps} steps up to version {version}; the data allow "
            f"{admission.total_steps}: nothing is left to resume"
        )
    config = parse_config(admission.config)
    kept, unfinished = await _left_behind(connection, run, config)
    place, redraw = await _position(connection, key, run, unfinished)
    first_epoch = None
    if changed:
        # Old places name other prompts now: what was cut short stays counted as aborted, and a new epoch begins.
        first_epoch = -(-place // run.prompts)
        place, redraw = first_epoch * admission.prompts, ()
    newest = await connection.scalar(NEWEST_GROUP, key)
    reward = await connection.scalar(LAST_REWARD, key)
    return Restored(
        admission=admission,
        version=version,
        batch=tuple(await connection.scalars(OPEN_BATCH, {**key, "buffer": version})),
        kept=kept,
        unfinished=tuple(GroupId(row.group_id) for row in unfinished),
        redraw=redraw,
        next_place=place,
        first_epoch=first_epoch,
        next_group=0 if newest is None else int(newest) + 1,
        dropped={status: count for status, count in await connection.execute(LEFT, key)},  # noqa: C416
        reward_mean=None if reward is None else float(reward),
    )


async def _left_behind(
    connection: AsyncConnection, run: Row[Any], config: RunConfig
) -> tuple[tuple[KeptGroup, ...], list[Row[Any]]]:
    """Groups without an end: those that may be trained on, in order of completion, and the others."""
    key = {"run": run.run_id}
    rows = {row.group_id: row for row in await connection.execute(LEFT_BEHIND, key)}
    psrl = config.psrl
    limits = {"groups": list(rows), "needed": psrl.rollout_n, "episodes": psrl.offered_trajectories}
    complete = [GroupId(group) for group in await connection.scalars(SCORED, {**key, **limits})]
    if filter_name(config) is not None:
        complete = await _passing(connection, run, config, complete)
    kept = tuple(KeptGroup(group_id=group, version_tag=rows.pop(group).version_tag) for group in complete)
    return kept, list(rows.values())


async def _passing(
    connection: AsyncConnection, run: Row[Any], config: RunConfig, complete: Sequence[GroupId]
) -> list[GroupId]:
    """Those that the filter, as it is now, lets pass: the run may have ended because of what it was."""
    needed, episodes = config.psrl.rollout_n, config.psrl.offered_trajectories
    groups = await read_scored_groups(connection, run.run_id, complete, needed, episodes)
    verdicts = Verdicts()
    found = await asyncio.gather(*(verdicts.of(run.workflow_run_id, config, groups[group]) for group in complete))
    return [group for group, its in zip(complete, found, strict=True) if its.verdict is Verdict.KEEP]


async def _position(
    connection: AsyncConnection, key: dict[str, Any], run: Row[Any], unfinished: Sequence[Row[Any]]
) -> tuple[int, tuple[int, ...]]:
    """The next place, and the places to draw again first."""
    cut_short = [*await connection.execute(CUT_SHORT, key), *((row.epoch, row.position) for row in unfinished)]
    again = {epoch * run.prompts + position for epoch, position in cut_short if epoch >= run.first_epoch}
    farthest = (await connection.execute(FARTHEST, key)).one_or_none()
    place = run.first_epoch * run.prompts
    if farthest is not None and farthest.epoch >= run.first_epoch:
        place = farthest.epoch * run.prompts + farthest.position + 1
    return place, tuple(sorted(again))
