"""Sessions that somebody opens at the gateway: each is a group of its own, for no batch."""

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.ids import SessionId
from ...schemas.messages.data import Purpose
from ...schemas.tables import Group
from .sessions import NewSession, open_session


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
