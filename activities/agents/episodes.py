"""Episodes of agents in the store: what one is given, what an attempt that failed leaves, and how one ended.

Promises: nothing of an abandoned attempt is trained on: its rows are moved into a group of their own, where people find
them under the name of its session; once an episode has ended nobody adds to it (L8).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, delete, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...schemas.errors import InvariantViolated, StaleAttempt
from ...schemas.ids import SessionId, session_id
from ...schemas.messages.agents import AgentRun, RunAgent
from ...schemas.messages.data import Purpose
from ...schemas.messages.episodes import EpisodeOutcome, TerminateReason
from ...schemas.messages.rewards import PROMPT_MESSAGES
from ...schemas.status import GroupStatus, SegmentKind, TrajectoryStatus
from ...schemas.tables import Group, Segment, Session, Trajectory, Turn
from ...schemas.text import MAX_REASON, storable
from ..sessions.fences import above, first_call

ENDS_AS = {
    TerminateReason.ABORTED: TrajectoryStatus.ABORTED,
    **{reason: TrajectoryStatus.FINISHED for reason in TerminateReason if reason.success},
}
"""The others have failed."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a prompt, as the store has it now."""

    prompt: str
    messages: list[dict[str, Any]] | None
    extra: dict[str, Any]
    session: SessionId | None
    """That plays it or has played it."""
    sessions: int
    """That were opened for it so far, those of abandoned attempts included."""
    outcome: EpisodeOutcome | None
    fence: int
    """Of its first branch."""

    @property
    def first_call(self) -> int:
        """Above all numbers that earlier attempts have used on its rows."""
        return first_call(self.fence)


async def read_episode(store: AsyncEngine, request: RunAgent) -> Episode:
    """Raises `InvariantViolated` when its group is not in the store."""
    group = select(Group.prompt_text, Group.extra).where(_of_group(Group, request))
    first = select(Trajectory.fence, Trajectory.outcome).where(
        _of_group(Trajectory, request), Trajectory.index == request.episode
    )
    name = session_id(request.group_id, request.episode)
    its_own = (Session.session_id == name) | Session.session_id.startswith(f"{name}.", autoescape=True)
    sessions = select(func.count()).where(Session.run_id == request.run_id, its_own)
    async with store.connect() as connection:
        found = (await connection.execute(group)).one_or_none()
        branch = (await connection.execute(first)).one_or_none()
        if found is None or branch is None:
            raise InvariantViolated(
                f"episode {request.episode} of group {request.group_id} of run {request.run_id} is not in the store"
            )
        current = await connection.scalar(select(Session.session_id).where(_of_episode_session(request)))
        opened = await connection.scalar(sessions)
    extra = dict(found.extra)
    return Episode(
        prompt=found.prompt_text,
        messages=extra.pop(PROMPT_MESSAGES, None),
        extra=extra,
        session=None if current is None else SessionId(current),
        sessions=opened or 0,
        outcome=None if branch.outcome is None else EpisodeOutcome.model_validate(branch.outcome),
        fence=branch.fence,
    )


async def set_aside(store: AsyncEngine, request: RunAgent, session: SessionId) -> None:
    """What a session that is closed has left of the episode becomes a group of its own, of the session's name, and the
    episode is as it was drawn. Idempotent."""
    async with store.begin() as connection:
        aside = {Group.group_id.key: literal(session)}
        why = f"an attempt at episode {request.episode} of group {request.group_id} that was given up"
        as_group = {"purpose": literal(Purpose.OUTSIDE.value), "status": literal(GroupStatus.ABORTED.value)}
        await _copy(connection, Group, {**aside, **as_group, "reason": literal(why)}, _of_group(Group, request))
        ended = {"status": literal(TrajectoryStatus.ABORTED.value)}
        await _copy(connection, Trajectory, {**aside, **ended}, _of_episode(Trajectory, request))
        await _copy(connection, Turn, aside, _of_episode(Turn, request))
        await _copy(connection, Segment, aside, _of_episode(Segment, request))
        await connection.execute(update(Session).where(_of_episode_session(request)).values(group_id=session))
        await _begin_anew(connection, request)


async def end_episode(
    store: AsyncEngine, request: RunAgent, session: SessionId, outcome: EpisodeOutcome, error: str = ""
) -> AgentRun:
    """When its session is closed: turns that nobody waited for to their end are taken back, the outcome is written, and
    what is left may be scored. One without a turn has failed, whatever its agent says. Raises `StaleAttempt` when
    another session plays it meanwhile: who asks was given up, and may have been the last to notice."""
    async with store.begin() as connection:
        current = select(Session.session_id).where(_of_episode_session(request)).with_for_update()
        if await connection.scalar(current) != session:
            raise StaleAttempt(f"session {session} was given up: another attempt plays its episode")
        await connection.execute(delete(Turn).where(_of_episode(Turn, request), Turn.end.is_(None)))
        of_branch = (Turn.run_id == Trajectory.run_id) & (Turn.group_id == Trajectory.group_id)
        of_branch &= Turn.index == Trajectory.index
        empty = ~select(Turn.turn).where(of_branch).exists()
        further = (_of_episode(Trajectory, request), Trajectory.index != request.episode)
        await connection.execute(delete(Trajectory).where(*further, empty))
        run = await _counted(connection, request, outcome.ended, error)
        status = ENDS_AS.get(run.ended, TrajectoryStatus.FAILED)
        sampled = select(func.coalesce(func.sum(Turn.tokens), 0)).where(of_branch).scalar_subquery()
        failed = status is TrajectoryStatus.FAILED
        await connection.execute(
            update(Trajectory)
            .where(_of_episode(Trajectory, request))
            .values(
                status=status.value,
                tokens=sampled,
                fence=above(Trajectory.fence),
                reward_error=storable(f"{run.ended}: {run.error}", MAX_REASON) if failed else "",
                finished_at=func.clock_timestamp(),
            )
        )
        written = outcome.model_copy(update={"ended": run.ended}).model_dump(mode="json")
        await connection.execute(
            update(Trajectory)
            .where(_of_episode(Trajectory, request), Trajectory.index == request.episode)
            .values(outcome=written)
        )
        return run


async def ended_before(store: AsyncEngine, request: RunAgent, outcome: EpisodeOutcome) -> AgentRun:
    """How an episode ended that was played by an earlier attempt of the same call."""
    async with store.connect() as connection:
        return await _counted(connection, request, outcome.ended)


async def _begin_anew(connection: AsyncConnection, request: RunAgent) -> None:
    of_episode = _of_episode(Trajectory, request)
    newest = select(func.max(Trajectory.fence)).where(of_episode).scalar_subquery()
    fence = await connection.scalar(select(above(newest)))
    await connection.execute(delete(Turn).where(_of_episode(Turn, request)))
    await connection.execute(delete(Trajectory).where(of_episode, Trajectory.index != request.episode))
    await connection.execute(
        update(Trajectory)
        .where(of_episode)
        .values(
            status=TrajectoryStatus.PENDING.value,
            tokens=0,
            fence=fence,
            reward_error="",
            outcome=None,
            finished_at=None,
        )
    )


async def _counted(connection: AsyncConnection, request: RunAgent, ended: TerminateReason, error: str = "") -> AgentRun:
    turns = await connection.scalar(select(func.count()).where(_of_episode(Turn, request))) or 0
    sampled = (_of_episode(Segment, request), Segment.kind == SegmentKind.SAMPLED.value)
    counts = select(func.count(), func.coalesce(func.sum(Segment.tokens), 0)).where(*sampled)
    segments, tokens = (await connection.execute(counts)).one()
    versions = select(Segment.version).where(*sampled).distinct().order_by(Segment.version)
    if ended.success and not turns:
        ended, error = TerminateReason.UNKNOWN, error or "the agent ended without a turn"
    return AgentRun(
        ended=ended,
        turns=turns,
        tokens=tokens,
        segments=segments,
        versions=tuple(version for version in await connection.scalars(versions) if version is not None),
        error=error,
    )


async def _copy(
    connection: AsyncConnection,
    table: type[Group | Trajectory | Turn | Segment],
    other: Mapping[str, ColumnElement[Any]],
    which: ColumnElement[bool],
) -> None:
    """Rows once more, with other values in some columns."""
    rows: Table = table.__table__  # type: ignore[assignment]
    columns = [other.get(column.name, column) for column in rows.columns]
    names = [column.name for column in rows.columns]
    await connection.execute(insert(rows).from_select(names, select(*columns).where(which)))


def _of_group(table: Any, request: RunAgent) -> ColumnElement[bool]:
    found: ColumnElement[bool] = (table.run_id == request.run_id) & (table.group_id == request.group_id)
    return found


def _of_episode(table: Any, request: RunAgent) -> ColumnElement[bool]:
    found: ColumnElement[bool] = _of_group(table, request) & (table.index % request.episodes == request.episode)
    return found


def _of_episode_session(request: RunAgent) -> ColumnElement[bool]:
    return _of_group(Session, request) & (Session.episode == request.episode)
