"""Connections to PostgreSQL."""

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

POOL_SIZE = 4
"""Connections one process keeps; PostgreSQL's default allows 100 in all."""


def async_engine(url: str, pool_size: int = POOL_SIZE) -> AsyncEngine:
    """For asyncio processes. A dead connection is noticed and replaced before use."""
    return create_async_engine(url, pool_size=pool_size, max_overflow=0, pool_pre_ping=True)


def sync_engine(url: str, connect_timeout_s: int | None = None) -> Engine:
    """For the trainer and command-line tools."""
    arguments = {} if connect_timeout_s is None else {"connect_timeout": connect_timeout_s}
    return create_engine(url, pool_size=1, max_overflow=2, pool_pre_ping=True, connect_args=arguments)
