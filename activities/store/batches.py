"""Consume in the store: which trajectories a buffer trains on.

Promises: a batch is recorded wholly or not at all; the same buffer asked for again gives the same batch; an episode is
trained on with all its branches or not at all; a member has a reward (a failed or aborted trajectory is never one); a
trajectory in two batches (L2) or outside its bound (L1) is refused by the database itself, and reported as
`InvariantViolated`.
"""

from typing import Any

from psycopg.errors import IntegrityError as PostgresRefusal
from sqlalchemy import TextClause, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...schemas.config.psrl import PsrlSection
from ...schemas.errors import InvariantViolated, RunUnknown
from ...schemas.ids import RunId
from ...schemas.messages.data import Purpose
from ...schemas.messages.training import BatchInfo, BatchRequest
from ...schemas.status import GroupStatus, SegmentKind, TrajectoryStatus
from ...schemas.tables import Batch, Group, Run
from .groups import mark_groups_on
from .literals import listed

BROKEN_PROMISE = {
    "pk_batch_members": "L2: a trajectory would be trained on twice",
    "ck_batch_members_staleness_bound": "L1: a group would be trained on outside its staleness bound",
}
"""What a refusal of the database means, by the name of the constraint."""

INSERT_MEMBERS: TextClause = text(
    f"""
    INSERT INTO batch_members (run_id, group_id, index, buffer, version_tag, staleness)
    SELECT t.run_id, t.group_id, t.index, :buffer, ranked.version_tag, :staleness
    FROM (
        SELECT t.group_id, t.index AS episode, g.version_tag,
               row_number() OVER (PARTITION BY t.group_id ORDER BY t.scored_at, t.index) AS rank
        FROM trajectories t JOIN groups g USING (run_id, group_id)
        WHERE t.run_id = :run AND t.group_id = ANY(:taken) AND t.index < :episodes
            AND t.status = {listed(TrajectoryStatus.SCORED)} AND t.reward IS NOT NULL
    ) ranked
    JOIN trajectories t ON t.group_id = ranked.group_id AND t.index % :episodes = ranked.episode
    WHERE ranked.rank <= :needed AND t.run_id = :run AND t.group_id = ANY(:taken)
        AND t.status = {listed(TrajectoryStatus.SCORED)}
        AND EXISTS (
            SELECT 1 FROM turns u
            WHERE u.run_id = :run AND u.group_id = ANY(:taken) AND u.group_id = t.group_id AND u.index = t.index
                AND u."end" IS NOT NULL
        )
    """
)
"""The first N scored episodes of each group, in the order in which they were scored, with every branch of them on which
the policy has answered."""

SHORT_GROUPS: TextClause = text(
    """
    SELECT wanted.id, count(DISTINCT m.index % :episodes) AS members
    FROM unnest(CAST(:taken AS text[])) AS wanted (id)
    LEFT JOIN batch_members m ON m.run_id = :run AND m.group_id = wanted.id AND m.buffer = :buffer
    GROUP BY wanted.id HAVING count(DISTINCT m.index % :episodes) < :needed ORDER BY wanted.id
    """
)

# The group ids stand in every query by value, though a join would imply them: the primary keys then serve it whatever
# the planner believes of the tables' sizes. In a young database its statistics lag behind.

OLD_SEGMENTS: TextClause = text(
    """
    SELECT s.group_id, s.index, s.version, m.version_tag
    FROM batch_members m JOIN segments s USING (run_id, group_id, index)
    WHERE m.run_id = :run AND m.buffer = :buffer AND s.version < m.version_tag
      AND s.run_id = :run AND s.group_id = ANY(:taken)
    ORDER BY s.group_id, s.index LIMIT 5
    """
)

SUMMARY: TextClause = text(
    """
    WITH episodes AS (
        SELECT m.group_id, m.index % :episodes AS episode, count(DISTINCT m.index) AS branches, sum(u.tokens) AS tokens
        FROM batch_members m JOIN turns u USING (run_id, group_id, index)
        WHERE m.run_id = :run AND m.buffer = :buffer AND u.run_id = :run AND u.group_id = ANY(:taken)
            AND u."end" IS NOT NULL
        GROUP BY m.group_id, episode
    )
    SELECT count(DISTINCT t.group_id), count(*), sum(e.branches)::bigint, sum(e.tokens)::bigint,
           avg(t.reward), stddev_pop(t.reward), avg(e.tokens)::double precision
    FROM episodes e JOIN trajectories t ON t.group_id = e.group_id AND t.index = e.episode
    WHERE t.run_id = :run AND t.group_id = ANY(:taken)
    """
)
"""An episode's reward is in the row of its first branch, be that one trained on or not."""

METRICS: TextClause = text(
    """
    SELECT metric.key, avg(metric.value::double precision)
    FROM (
        SELECT DISTINCT group_id, index % :episodes AS episode
        FROM batch_members WHERE run_id = :run AND buffer = :buffer
    ) e JOIN trajectories t ON t.group_id = e.group_id AND t.index = e.episode,
    jsonb_each_text(t.reward_metrics) metric
    WHERE t.run_id = :run AND t.group_id = ANY(:taken)
    GROUP BY metric.key ORDER BY metric.key
    """
)

STALENESS: TextClause = text(
    """
    SELECT buffer - version_tag, count(DISTINCT group_id)
    FROM batch_members WHERE run_id = :run AND buffer = :buffer GROUP BY 1 ORDER BY 1
    """
)

TOKEN_STALENESS: TextClause = text(
    f"""
    SELECT min(m.buffer - s.version), sum((m.buffer - s.version)::bigint * s.tokens)::double precision / sum(s.tokens)
    FROM batch_members m JOIN segments s USING (run_id, group_id, index)
    JOIN turns u USING (run_id, group_id, index, turn)
    WHERE m.run_id = :run AND m.buffer = :buffer AND s.run_id = :run AND s.group_id = ANY(:taken)
      AND u.run_id = :run AND u.group_id = ANY(:taken) AND u."end" IS NOT NULL
      AND s.kind = {listed(SegmentKind.SAMPLED)} AND s.tokens > 0
    """
)
"""A turn that has not ended is not trained on."""

GROUPS_WAITED: TextClause = text(
    """
    SELECT avg(seconds), max(seconds)
    FROM (
        SELECT extract(epoch FROM now() - max(t.scored_at))::double precision AS seconds
        FROM batch_members m JOIN trajectories t USING (run_id, group_id, index)
        WHERE m.run_id = :run AND m.buffer = :buffer AND t.run_id = :run AND t.group_id = ANY(:taken)
        GROUP BY m.group_id
    ) waited
    """
)
"""Since the last of its members was scored."""


async def record_batch(store: AsyncEngine, request: BatchRequest) -> BatchInfo:
    """Raises `InvariantViolated` when the batch would break a promise; then nothing is recorded."""
    try:
        async with store.begin() as connection:
            return await _record(connection, request)
    except IntegrityError as error:
        raise _explain(request, error) from error


async def _record(connection: AsyncConnection, request: BatchRequest) -> BatchInfo:
    key = {"run": request.run_id, "buffer": request.buffer}
    # Of two attempts at the same time, the second waits here for the first and then answers with its batch.
    claim = insert(Batch).values(run_id=request.run_id, buffer=request.buffer, info={}).on_conflict_do_nothing()
    if await connection.scalar(claim.returning(Batch.buffer)) is None:
        return await _stored(connection, request)
    psrl = await _settings(connection, request.run_id)
    taken = list(request.taken)
    limits = {"needed": psrl.rollout_n, "episodes": psrl.offered_trajectories}
    await _check_trainable(connection, request)
    await connection.execute(INSERT_MEMBERS, {**key, **limits, "staleness": psrl.staleness, "taken": taken})
    await _check_members(connection, request, limits)
    info = await _summary(connection, {**key, **limits, "taken": taken})
    await connection.execute(
        update(Batch)
        .where(Batch.run_id == request.run_id, Batch.buffer == request.buffer)
        .values(info=info.model_dump(mode="json"))
    )
    await connection.execute(
        update(Group)
        .where(Group.run_id == request.run_id, Group.group_id.in_(taken))
        .values(status=GroupStatus.TRAINED.value)
    )
    await mark_groups_on(
        connection, request.run_id, request.dropped, GroupStatus.DROPPED, f"given up for buffer {request.buffer}"
    )
    return info


async def _stored(connection: AsyncConnection, request: BatchRequest) -> BatchInfo:
    query = select(Batch.info).where(Batch.run_id == request.run_id, Batch.buffer == request.buffer)
    return BatchInfo.model_validate(await connection.scalar(query))


async def _settings(connection: AsyncConnection, run_id: RunId) -> PsrlSection:
    config = (await connection.scalars(select(Run.config).where(Run.run_id == run_id))).one()
    return PsrlSection.model_validate(config["psrl"])


async def _check_trainable(connection: AsyncConnection, request: BatchRequest) -> None:
    """Locks the groups: none can be given up while the batch is written."""
    query = (
        select(Group.group_id, Group.purpose, Group.status)
        .where(Group.run_id == request.run_id, Group.group_id.in_(request.taken))
        .order_by(Group.group_id)
        .with_for_update()
    )
    found = {row.group_id: row for row in await connection.execute(query)}
    wrong: list[str] = [f"{group} (not in the store)" for group in request.taken if group not in found]
    for group_id, row in found.items():
        if row.purpose != Purpose.TRAIN:
            wrong.append(f"{group_id} (for {row.purpose})")
        elif row.status not in (GroupStatus.LIVE, GroupStatus.TRAINED):
            wrong.append(f"{group_id} ({row.status})")
    if wrong or not request.taken:
        raise _violated(request, f"groups that cannot be trained on: {', '.join(wrong) or 'the batch is empty'}")


async def _check_members(connection: AsyncConnection, request: BatchRequest, limits: dict[str, int]) -> None:
    key = {"run": request.run_id, "buffer": request.buffer}
    short = await connection.execute(SHORT_GROUPS, {**key, **limits, "taken": list(request.taken)})
    missing = [f"{group} has {members} scored trajectories of {limits['needed']}" for group, members in short]
    if missing:
        raise _violated(request, f"L10: {'; '.join(missing)}")
    old = await connection.execute(OLD_SEGMENTS, {**key, "taken": list(request.taken)})
    broken = [f"{group}/{index} has tokens of version {version}, tag {tag}" for group, index, version, tag in old]
    if broken:
        raise _violated(request, f"L1: {'; '.join(broken)}")


async def _summary(connection: AsyncConnection, key: dict[str, Any]) -> BatchInfo:
    groups, episodes, trajectories, tokens, mean, std, length = (await connection.execute(SUMMARY, key)).one()
    metrics = await connection.execute(METRICS, key)
    histogram = await connection.execute(STALENESS, key)
    freshest, age = (await connection.execute(TOKEN_STALENESS, key)).one()
    waited_mean, waited_max = (await connection.execute(GROUPS_WAITED, key)).one()
    return BatchInfo(
        groups=groups,
        trajectories=trajectories,
        episodes=episodes,
        tokens=tokens,
        staleness={age: count for age, count in histogram},  # noqa: C416  (rows are no pairs to dict)
        token_staleness_min=freshest,
        token_staleness_mean=age,
        group_waited_mean_s=waited_mean,
        group_waited_max_s=waited_max,
        reward_mean=mean,
        reward_std=std,
        reward_metrics={name: average for name, average in metrics},  # noqa: C416
        response_tokens_mean=length,
    )


def _explain(request: BatchRequest, error: IntegrityError) -> Exception:
    refusal = error.orig
    if not isinstance(refusal, PostgresRefusal):
        return error
    name = refusal.diag.constraint_name or ""
    if name == "fk_batches_run_id_runs":
        return RunUnknown(f"run {request.run_id!r} is not in the store")
    promise = BROKEN_PROMISE.get(name, name)
    return _violated(request, f"{promise} ({refusal.diag.message_detail or refusal.diag.message_primary})")


def _violated(request: BatchRequest, what: str) -> InvariantViolated:
    return InvariantViolated(f"buffer {request.buffer} of run {request.run_id}: {what}")
