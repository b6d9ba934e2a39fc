"""Reaching PostgreSQL, with an error that helps when it is not there: for processes, which wait for it at their start,
and for commands, which look once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.errors import UndefinedColumn, UndefinedTable
from sqlalchemy import Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError

from ...schemas.errors import StoreRevisionMismatch, Unreachable, another_stacks
from ...schemas.silence import why_silent
from .connections import sync_store
from .identity import AnotherStore

TIMEOUT_S = 60.0
PAUSE_S = 0.5
COMMAND_CONNECT_S = 5
"""A server that hangs takes connections and never greets: a person does not wait the driver's two minutes."""


@contextmanager
def opened(url: str, store_id: str = "") -> Iterator[Engine]:
    """For the time of one command. Raises `Unreachable` when PostgreSQL does not answer, then or later, `NotOurs` when
    it is another stack's, and `StoreRevisionMismatch` when it has other tables."""
    store = sync_store(url, COMMAND_CONNECT_S, store_id)
    try:
        yield store
    except (OperationalError, InterfaceError) as error:
        raise _told(url, error, "did not answer") from error
    except ProgrammingError as error:
        if not isinstance(error.orig, UndefinedTable | UndefinedColumn):
            raise
        raise StoreRevisionMismatch(
            f"{_named(url)} does not have the tables of this release: `psrl up` upgrades it, or use the release that "
            "matches it"
        ) from error
    finally:
        store.dispose()


def require_reachable(url: str, timeout_s: float = TIMEOUT_S, store_id: str = "") -> None:
    """Returns as soon as our server answers a query. Raises `Unreachable` saying what was tried and for how long, or
    `NotOurs`."""
    store = sync_store(url, store_id=store_id)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                store.connect().close()
                return
            except OperationalError as error:
                if time.monotonic() >= deadline:
                    raise _told(url, error, f"did not answer within {timeout_s:.0f} s") from error
            time.sleep(PAUSE_S)
    finally:
        store.dispose()


_WHAT_TO_DO = (
    "`psrl up` starts one; to use your own server, pass --postgres-url, as postgresql://USER:PASSWORD@HOST:PORT/DB"
)


def _told(url: str, error: OperationalError | InterfaceError, what: str) -> Unreachable:
    if isinstance(error.orig, AnotherStore):
        return another_stacks("PostgreSQL", _address(url), error.orig.found, error.orig.expected)
    return Unreachable(f"{_named(url)} {what}: {why_silent(error.orig)}. {_WHAT_TO_DO}")


def _named(url: str) -> str:
    return f"PostgreSQL at {_address(url)}"


def _address(url: str) -> str:
    return make_url(url).render_as_string()
