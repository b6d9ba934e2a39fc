"""Connections to PostgreSQL."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from .identity import only_ours

POOL_SIZE = 4
"""Connections one process keeps; PostgreSQL's default allows 100 in all."""


def async_store(url: str, pool_size: int = POOL_SIZE, pre_ping: bool = True, store_id: str = "") -> AsyncEngine:
    """For asyncio processes. A dead connection is noticed and replaced before use; without `pre_ping`, a round trip
    less, the first call on it fails, which is for callers who repeat their calls. With `store_id`, another stack's
    database is refused like one that does not answer."""
    store = create_async_engine(url, pool_size=pool_size, max_overflow=0, pool_pre_ping=pre_ping)
    only_ours(store.sync_engine, store_id)
    return store


@functools.lru_cache(maxsize=16)
def one_statement_each(store: AsyncEngine) -> AsyncEngine:
    """The same connections, with every statement a transaction of its own: one round trip instead of three. Made
    once for each store: that costs as much as a statement."""
    return store.execution_options(isolation_level="AUTOCOMMIT")


async def answer_of(store: AsyncEngine, statement: str, values: Mapping[str, Any]) -> Sequence[Any]:
    """Rows of a statement that is written out, in a transaction of its own. What every turn asks is: to build its text
    and to work out the types anew costs a process more than all else that it does for the question."""
    async with one_statement_each(store).connect() as connection:
        return (await connection.exec_driver_sql(statement, values)).all()


def sync_store(url: str, connect_timeout_s: int | None = None, store_id: str = "") -> Engine:
    """For the trainer and command-line tools."""
    arguments = {} if connect_timeout_s is None else {"connect_timeout": connect_timeout_s}
    store = create_engine(url, pool_size=1, max_overflow=2, pool_pre_ping=True, connect_args=arguments)
    only_ours(store, store_id)
    return store
