"""Rows of sessions: opened, found by name, and what their workflows tell of them. Used by the gateway, the agent runner
and the orchestrator."""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.errors import InvariantViolated
from ...schemas.ids import GroupId, RunId, SessionId, session_id
from ...schemas.messages.data import Purpose
from ...schemas.messages.sessions import SessionRecord
from ...schemas.status import SessionStatus
from ...schemas.tables import Group, Session, Trajectory
from ...schemas.text import MAX_REASON, storable
from ..store.connections import answer_of


@dataclass(frozen=True, slots=True)
class NewSession:
    run_id: RunId
    group_id: GroupId
    episode: int
    episodes: int
    token: str
    labels: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    """At the episode: sessions of earlier ones were set aside."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    run_id: RunId
    session_id: SessionId
    group_id: GroupId
    episode: int
    episodes: int
    purpose: Purpose
    version_tag: int
    token_digest: bytes
    labels: dict[str, Any]
    status: SessionStatus
    reason: str

    def opened_by(self, token: str) -> bool:
        """Whether the token opens it. Takes the same time whatever the token."""
        return hmac.compare_digest(self.token_digest, digest(token))


def digest(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).digest()


async def open_session(store: AsyncEngine, new: NewSession) -> SessionId:
    """The row, and that of its first branch. Idempotent: the token of the first call stays. Raises `InvariantViolated`
    when the group is not in the store."""
    name = session_id(new.group_id, new.episode, new.attempt)
    of_group = {"run_id": new.run_id, "group_id": new.group_id}
    session = {"session_id": name, "episode": new.episode, "episodes": new.episodes, "labels": new.labels}
    group = select(Group.group_id).where(Group.run_id == new.run_id, Group.group_id == new.group_id)
    async with store.begin() as connection:
        if await connection.scalar(group) is None:
            raise InvariantViolated(f"group {new.group_id} of run {new.run_id} is not in the store")
        await connection.execute(insert(Trajectory).values(**of_group, index=new.episode).on_conflict_do_nothing())
        row = insert(Session).values(**of_group, **session, token_digest=digest(new.token))
        await connection.execute(row.on_conflict_do_nothing())
    return name


FIND_SESSION = """
SELECT s.group_id, s.episode, s.episodes, s.labels, s.status, s.reason, s.token_digest, g.version_tag, g.purpose
FROM sessions s JOIN groups g USING (run_id, group_id)
WHERE s.run_id = %(run)s AND s.session_id = %(session)s
"""


async def find_session(store: AsyncEngine, run_id: RunId, name: SessionId) -> StoredSession | None:
    for found in await answer_of(store, FIND_SESSION, {"run": run_id, "session": name}):
        return StoredSession(
            run_id=run_id,
            session_id=name,
            group_id=GroupId(found.group_id),
            episode=found.episode,
            episodes=found.episodes,
            purpose=Purpose(found.purpose),
            version_tag=found.version_tag,
            token_digest=found.token_digest,
            labels=found.labels,
            status=SessionStatus(found.status),
            reason=found.reason,
        )
    return None


async def store_session(store: AsyncEngine, record: SessionRecord) -> None:
    """What its workflow says of it. One that is closed stays closed."""
    closed = record.status is SessionStatus.CLOSED
    this = (Session.run_id == record.run_id) & (Session.session_id == record.session_id)
    values = {
        "status": record.status.value,
        "reason": storable(record.reason, MAX_REASON),
        "closed_at": func.now() if closed else None,
    }
    async with store.begin() as connection:
        await connection.execute(
            update(Session).where(this, Session.status != SessionStatus.CLOSED.value).values(values)
        )
