"""Complete groups as a filter sees them, read from the store."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ...schemas.ids import GroupId, RunId
from ...schemas.messages.rewards import PROMPT_MESSAGES, ScoredGroup, ScoredTrajectory
from ...schemas.status import TrajectoryStatus
from ..store.literals import listed

LOCK: TextClause = text("SELECT 1 FROM groups WHERE run_id = :run AND group_id = :group FOR UPDATE")

READ: TextClause = text(
    f"""
    SELECT group_id, data_source, ground_truth, extra, number, reward, reward_metrics, tokens
    FROM (
        SELECT g.group_id, g.data_source, g.ground_truth, g.extra, t.index AS number, t.reward, t.reward_metrics,
               (SELECT sum(b.tokens) FROM trajectories b WHERE b.run_id = t.run_id AND b.group_id = t.group_id
                    AND b.index % :episodes = t.index) AS tokens,
               row_number() OVER (PARTITION BY t.group_id ORDER BY t.scored_at, t.index) AS nth
        FROM trajectories t JOIN groups g USING (run_id, group_id)
        WHERE t.run_id = :run AND t.group_id = ANY(:groups) AND t.status = {listed(TrajectoryStatus.SCORED)}
            AND t.reward IS NOT NULL AND t.index < :episodes
    ) ranked
    WHERE nth <= :needed ORDER BY group_id, number
    """
)
"""The N episodes that count are those that a batch would take: the first to be scored."""


async def lock_group(connection: AsyncConnection, run_id: RunId, group_id: GroupId) -> None:
    """Scores of one group are stored one after the other: in the order of their times, so that which of them are the
    first N does not change any more once there are N."""
    await connection.execute(LOCK, {"run": run_id, "group": group_id})


async def read_scored_groups(
    connection: AsyncConnection, run_id: RunId, groups: Sequence[GroupId], needed: int, episodes: int
) -> dict[GroupId, ScoredGroup]:
    """Of these groups, of `episodes` each, those that have as many scored ones as they need."""
    key = {"run": run_id, "groups": list(groups), "needed": needed, "episodes": episodes}
    rows = await connection.execute(READ, key)
    return {group.group_id: group for group in _groups(rows.all()) if len(group.trajectories) == needed}


def _groups(rows: Sequence[Row[Any]]) -> Iterator[ScoredGroup]:
    for group_id, members in groupby(rows, key=lambda row: GroupId(row.group_id)):
        first, *others = members
        yield ScoredGroup(
            group_id=group_id,
            data_source=first.data_source,
            ground_truth=first.ground_truth,
            extra={name: value for name, value in first.extra.items() if name != PROMPT_MESSAGES},
            trajectories=tuple(
                ScoredTrajectory(index=row.number, reward=row.reward, metrics=row.reward_metrics, tokens=row.tokens)
                for row in (first, *others)
            ),
        )
