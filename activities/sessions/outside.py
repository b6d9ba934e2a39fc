"""Sessions that somebody opens at the gateway: each is a group of its own, for no batch. They end with their run."""

import asyncio
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.ids import RunId, SessionId
from ...schemas.messages.data import Purpose
from ...schemas.messages.sessions import CloseSession
from ...schemas.status import SessionStatus
from ...schemas.tables import Group, Session
from .sessions import NewSession, open_session

AT_ONCE = 32
"""Sessions that are told at the same time."""


class Closes(Protocol):
    """`Session` workflows, as far as they are closed here."""

    async def close(self, run_id: RunId, name: SessionId, request: CloseSession) -> bool: ...


async def open_outside(store: AsyncEngine, new: NewSession, version_tag: int) -> SessionId:
    """With its group, the only episode of which it is. Idempotent: the token of the first call stays."""
    unused = {"epoch": 0, "position": 0, "row": 0, "prompt_text": "", "data_source": "", "extra": {}}
    group = {
        "run_id": new.run_id,
        "group_id": new.group_id,
        "purpose": Purpose.OUTSIDE.value,
        "version_tag": version_tag,
    }
    async with store.begin() as connection:
        await connection.execute(insert(Group).values(**group, **unused, prompt_ids=b"").on_conflict_do_nothing())
    return await open_session(store, new)


async def close_outside(store: AsyncEngine, sessions: Closes, run_id: RunId) -> None:
    """When their run has ended: no instance serves their turns any more. Idempotent."""
    of_group = (Group.run_id == Session.run_id) & (Group.group_id == Session.group_id)
    query = select(Session.session_id).join(Group, of_group).where(Session.run_id == run_id)
    query = query.where(Group.purpose == Purpose.OUTSIDE.value, Session.status != SessionStatus.CLOSED.value)
    async with store.connect() as connection:
        names = [SessionId(name) for name in await connection.scalars(query)]
    room = asyncio.Semaphore(AT_ONCE)

    async def close(name: SessionId) -> None:
        async with room:
            await sessions.close(run_id, name, CloseSession(reason="its run has ended", cut=True))

    await asyncio.gather(*map(close, names))
