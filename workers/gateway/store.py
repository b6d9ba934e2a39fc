"""What the gateway reads and writes in the store: the seam that tests replace."""

import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from ...activities.sessions import turns
from ...activities.sessions.access import Caller, caller_of
from ...activities.sessions.outside import open_outside
from ...activities.sessions.places import NewTurn, PlacedTurn, place_turn
from ...activities.sessions.sessions import NewSession, StoredSession, find_session
from ...activities.sessions.turns import KnownTurn, Sampled
from ...activities.sessions.view import BranchView, OpenSession, branches_of, open_sessions
from ...activities.store.connections import one_statement_each
from ...activities.store.runs import AdmittedRuns
from ...schemas.config import RunConfig
from ...schemas.ids import RunId, SessionId

Params = ParamSpec("Params")
Result = TypeVar("Result")


class Sessions(Protocol):
    """As `activities.sessions` has it."""

    async def caller(self, token: str) -> Caller | None: ...

    async def config(self, run_id: RunId) -> RunConfig: ...

    async def find(self, run_id: RunId, name: SessionId) -> StoredSession | None: ...

    async def open(self, new: NewSession, version_tag: int) -> SessionId: ...

    async def known_turns(self, session: StoredSession) -> Sequence[KnownTurn]: ...

    async def prompt_tokens(self, session: StoredSession, index: int, turn: int) -> int: ...

    async def place_turn(
        self, session: StoredSession, key: str, where: NewTurn, token_ids: Sequence[int]
    ) -> PlacedTurn: ...

    async def give_up_turn(self, session: StoredSession, key: str) -> None: ...

    async def sampled(self, session: StoredSession, index: int, turn: int) -> Sampled: ...

    async def name_turn(self, session: StoredSession, index: int, turn: int, node: str) -> None: ...

    async def branches(self, session: StoredSession) -> Sequence[BranchView]: ...

    async def open_sessions(self, run_id: RunId) -> Sequence[OpenSession]: ...


def repeated(call: Callable[Params, Coroutine[Any, Any, Result]]) -> Callable[Params, Coroutine[Any, Any, Result]]:
    """Once more when its connection turns out to be one that an earlier server has left: looking at each connection
    before its use would cost a third of all round trips. Every call here may be repeated."""

    @functools.wraps(call)
    async def again(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return await call(*args, **kwargs)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        return await call(*args, **kwargs)

    return again


class StoredSessions:
    """In PostgreSQL."""

    def __init__(self, store: AsyncEngine) -> None:
        self._store, self._each, self._runs = store, one_statement_each(store), AdmittedRuns()

    @repeated
    async def caller(self, token: str) -> Caller | None:
        return await caller_of(self._each, token)

    @repeated
    async def config(self, run_id: RunId) -> RunConfig:
        async with self._each.connect() as connection:
            return (await self._runs.get(connection, run_id)).config

    @repeated
    async def find(self, run_id: RunId, name: SessionId) -> StoredSession | None:
        return await find_session(self._each, run_id, name)

    @repeated
    async def open(self, new: NewSession, version_tag: int) -> SessionId:
        return await open_outside(self._store, new, version_tag)

    @repeated
    async def known_turns(self, session: StoredSession) -> Sequence[KnownTurn]:
        return await turns.known_turns(self._each, session)

    @repeated
    async def prompt_tokens(self, session: StoredSession, index: int, turn: int) -> int:
        return await turns.prompt_tokens(self._each, session, index, turn)

    @repeated
    async def place_turn(
        self, session: StoredSession, key: str, where: NewTurn, token_ids: Sequence[int]
    ) -> PlacedTurn:
        return await place_turn(self._each, session, key, where, token_ids)

    @repeated
    async def give_up_turn(self, session: StoredSession, key: str) -> None:
        await turns.give_up_turn(self._store, session, key)

    @repeated
    async def sampled(self, session: StoredSession, index: int, turn: int) -> Sampled:
        return await turns.sampled(self._each, session, index, turn)

    @repeated
    async def name_turn(self, session: StoredSession, index: int, turn: int, node: str) -> None:
        await turns.name_turn(self._each, session, index, turn, node)

    @repeated
    async def branches(self, session: StoredSession) -> Sequence[BranchView]:
        return await branches_of(self._each, session)

    @repeated
    async def open_sessions(self, run_id: RunId) -> Sequence[OpenSession]:
        return await open_sessions(self._each, run_id)
