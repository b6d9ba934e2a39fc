"""Generation while PostgreSQL is away: it is waited for, the host stays alive, nothing is lost or doubled."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client

from psrl.activities.generation import patience
from psrl.schemas.errors import Unreachable
from psrl.schemas.messages.rollout import SegmentEnd
from psrl.schemas.stack import Stack
from psrl.workers.rollout.generate import InEngine
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.rollout import (
    PROMPT,
    RUN,
    SPEC,
    Bench,
    add_group,
    call,
    ids_of,
    make_bench,
    refused_results,
    stored_segments,
    until,
)
from tests.support.rollout_process import SCRIPTED, Site, end, open_site
from tests.support.scripted_engine import VARIABLE, Script, scripted_probe, scripted_tokens

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
TOKENS = 40
OUTAGE_S = 25.0
"""More than twice the heartbeat timeout of the call: a host that did not heartbeat would be taken for dead."""


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    """Of this module alone: it is stopped."""
    with running_postgres() as server:
        yield server


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine) -> AsyncIterator[Site]:
    await add_group(store)
    async with open_site(temporal_client, stack, store, {VARIABLE: json.dumps({"token_s": 0.05})}) as site:
        await site.publish(0, {}, scripted_probe(0))
        yield site


@pytest.fixture
async def bench(store: AsyncEngine) -> AsyncIterator[Bench]:
    await add_group(store)
    bench = make_bench(store, Script(manual=True))
    await bench.serve()
    yield bench
    await bench.host.shutdown()


async def test_an_outage_in_mid_generation_is_survived(site: Site, postgres_server: PostgresServer) -> None:
    instance = site.instance()
    host = site.start_host(instance, SCRIPTED)
    try:
        await site.drive(instance, SPEC)
        served = await site.serving(instance, 0)
        running = await site.generate(instance, call(max_tokens=TOKENS))
        fresh = await site.generate(instance, call(index=1, max_tokens=TOKENS))

        async def some_tokens() -> bool:
            return bool(await stored_segments(site.store))

        await until(some_tokens)
        await asyncio.to_thread(postgres_server.stop)
        await asyncio.sleep(OUTAGE_S)
        # The instance is still serving, by its own reports and for its workflow.
        assert (await site.serving(instance, 0)).pid == served.pid
        postgres_server.start()
        for index, handle in enumerate((running, fresh)):
            result = await handle.result()
            assert (result.end, result.tokens, result.new_tokens) == (SegmentEnd.LENGTH, TOKENS, TOKENS)
            assert ids_of(await stored_segments(site.store, index)) == scripted_tokens(PROMPT, TOKENS)
        assert await refused_results(site.store) == 0
        assert host.poll() is None
    finally:
        end(host)


async def test_a_call_that_begins_during_the_outage_waits_for_its_prompt(
    bench: Bench, store: AsyncEngine, postgres_server: PostgresServer
) -> None:
    await asyncio.to_thread(postgres_server.stop)
    first = asyncio.create_task(bench.generator.generate(call(), 1, InEngine()))
    later = asyncio.create_task(bench.generator.generate(call(index=1, number=1), 1, InEngine()))
    await asyncio.sleep(1)
    postgres_server.start()
    await bench.engine.allow(20)
    assert [(await task).tokens for task in (first, later)] == [10, 10]


async def test_an_outage_without_end_is_an_error_that_says_so(
    bench: Bench, store: AsyncEngine, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.create_task(bench.generator.generate(call(), 1, InEngine()))
    await bench.engine.until_running(1)
    monkeypatch.setattr(patience, "PATIENCE_S", 1.0)
    await asyncio.to_thread(postgres_server.stop)
    try:
        await bench.engine.allow(20)
        with pytest.raises(Unreachable, match=r"PostgreSQL did not take 1 segments for \d s: .*connection"):
            await asyncio.wait_for(running, 60)
    finally:
        postgres_server.start()
    assert bench.engine.running == set()


async def test_a_store_that_hangs_is_asked_again_and_nothing_is_stored_twice(
    bench: Bench, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "ATTEMPT_S", 0.3)
    asked: asyncio.Queue[bool] = asyncio.Queue()
    store_all = bench.generator._writer._store_all

    async def counting(rows: object, repeated: bool) -> object:
        asked.put_nowait(repeated)
        return await store_all(rows, repeated)  # type: ignore[arg-type]

    bench.generator._writer._store_all = counting  # type: ignore[assignment, method-assign]
    running = asyncio.create_task(bench.generator.generate(call(), 1, InEngine()))
    await bench.engine.until_running(1)
    async with store.connect() as connection:
        await connection.execute(text("LOCK TABLE trajectories"))
        await bench.engine.allow(100)
        assert [await asyncio.wait_for(asked.get(), 60) for _ in range(3)] == [False, True, True]
        await connection.rollback()
    assert (await running).tokens == 10
    segments = await stored_segments(store)
    assert ids_of(segments) == scripted_tokens(PROMPT, 10)
    async with store.connect() as connection:
        counted = await connection.scalar(
            text("SELECT tokens FROM trajectories WHERE run_id = :r AND index = 0"), {"r": RUN}
        )
    assert counted == 10
