"""Who may reach which sessions: a token opens one session, or all of a run. Used by the gateway, and by whoever hands
tokens out."""

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, null, select, union_all, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.dml import ReturningUpdate

from ...schemas.errors import RunUnknown
from ...schemas.ids import RunId, SessionId
from ...schemas.tables import Run, Session
from .sessions import digest

TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a token stands for."""

    run_id: RunId
    session_id: SessionId | None
    """The only session that it may reach; None: every one of the run."""


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


async def run_token(store: AsyncEngine, run_id: RunId) -> str:
    """The token of the run, made when it is asked for first. Raises `RunUnknown`."""
    async with store.begin() as connection:
        return _token(run_id, await connection.scalar(_kept_token(run_id)))


def run_token_now(store: Engine, run_id: RunId) -> str:
    """The same for commands."""
    with store.begin() as connection:
        return _token(run_id, connection.scalar(_kept_token(run_id)))


def _kept_token(run_id: RunId) -> ReturningUpdate[Any]:
    kept = func.coalesce(Run.token, new_token())
    return update(Run).where(Run.run_id == run_id).values(token=kept).returning(Run.token)


def _token(run_id: RunId, found: str | None) -> str:
    if found is None:
        raise RunUnknown(f"run {run_id!r} is not in the store; `psrl status` lists the runs that are")
    return found


async def caller_of(store: AsyncEngine, token: str) -> Caller | None:
    """None: a stranger's. Both are found by an index, which tells nothing that a stranger could use: a token is no
    guess, and of a session only its digest is looked for."""
    of_run = select(Run.run_id, null().label("session_id")).where(Run.token == token)
    of_session = select(Session.run_id, Session.session_id).where(Session.token_digest == digest(token))
    async with store.connect() as connection:
        found: Any = (await connection.execute(union_all(of_run, of_session))).first()
    if found is None:
        return None
    return Caller(RunId(found.run_id), None if found.session_id is None else SessionId(found.session_id))
