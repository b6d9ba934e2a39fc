"""The gateway's view of the store, when connections die."""

import pytest
from sqlalchemy import text

from psrl.activities.store.connections import async_store
from psrl.workers.gateway.store import StoredSessions

pytestmark = pytest.mark.integration

END_THE_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


async def test_a_connection_that_died_unused_costs_nothing_but_a_second_try(postgres_url: str) -> None:
    store, other = async_store(postgres_url, pool_size=2, pre_ping=False), async_store(postgres_url)
    sessions = StoredSessions(store)
    assert await sessions.caller("nobody's") is None
    async with other.begin() as connection:
        await connection.execute(END_THE_OTHERS)
    assert await sessions.caller("nobody's") is None
    await store.dispose()
    await other.dispose()
