"""Groups that leave: their rows say so, and why."""

from collections.abc import Sequence

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...schemas.ids import GroupId, RunId
from ...schemas.status import GROUP_EXITS, GroupStatus, TrajectoryStatus
from ...schemas.tables import Group, Trajectory
from ...schemas.text import MAX_REASON, storable

UNSCORED = (TrajectoryStatus.PENDING, TrajectoryStatus.FINISHED)


def exit_status(reason: str) -> GroupStatus:
    """The status of a group given up for `reason`, which may be one of the statuses or any other text."""
    return GroupStatus(reason) if reason in GROUP_EXITS else GroupStatus.ABORTED


async def mark_groups(
    store: AsyncEngine, run_id: RunId, groups: Sequence[GroupId], status: GroupStatus, reason: str
) -> None:
    """Idempotent; a group that was trained or has left already keeps its status."""
    async with store.begin() as connection:
        await mark_groups_on(connection, run_id, groups, status, reason)


async def mark_groups_on(
    connection: AsyncConnection, run_id: RunId, groups: Sequence[GroupId], status: GroupStatus, reason: str
) -> None:
    """The same within a transaction of the caller. Unscored trajectories end as `aborted`; a stored reward stays."""
    left = await connection.scalars(
        update(Group)
        .where(Group.run_id == run_id, Group.group_id.in_(groups), Group.status == GroupStatus.LIVE)
        .values(status=status.value, reason=storable(reason, MAX_REASON))
        .returning(Group.group_id)
    )
    await connection.execute(
        update(Trajectory)
        .where(
            Trajectory.run_id == run_id,
            Trajectory.group_id.in_(left.all()),
            Trajectory.status.in_(UNSCORED),
        )
        .values(status=TrajectoryStatus.ABORTED.value)
    )
