"""A whole run whose server is away for longer than its groups may take."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.messages.run import RunPhase
from tests.support.promises import promises_hold
from tests.support.rollout import until
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack
from tests.support.temporal import TemporalServer, running_temporal

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LIMIT_S = 15
ABSENT_S = 25
A_FEW, ALL = 20, 100_000
"""Tokens that each engine may sample."""
UNFINISHED = """
    select 1 from segments s join trajectories t using (run_id, group_id, index)
    where run_id = :run and t.status = 'pending' limit 1"""


@pytest.fixture
def temporal_server() -> Iterator[TemporalServer]:
    """Of this test alone: it ends with the thread that started it again."""
    with running_temporal() as server:
        yield server


async def test_no_group_is_lost_to_an_absence_longer_than_its_deadline(
    open_stack: OpenStack, store: AsyncEngine, temporal_server: TemporalServer
) -> None:
    async with open_stack(script=Script(manual=True)) as small:
        run = await small.start(small.config(psrl={"group_timeout_s": LIMIT_S}, trainer={"total_training_steps": 3}))
        await until(partial(_in_progress, small))
        await _allow(small, A_FEW)
        await until(partial(_any, store, small, UNFINISHED))
        temporal_server.kill()
        await asyncio.sleep(ABSENT_S)
        await asyncio.to_thread(temporal_server.start)
        await _allow(small, ALL)
        assert (await small.finish(run)).phase is RunPhase.DONE
        await promises_hold(store, small.run_id)
        dropped = (await small.status()).dropped
    assert set(dropped) <= {"aborted"}, "what was in flight went on"


async def _in_progress(small: SmallStack) -> bool:
    return all(host.engines and host.engines[0].running for host in small.hosts.values())


async def _allow(small: SmallStack, tokens: int) -> None:
    for host in small.hosts.values():
        await host.engines[0].allow(tokens)


async def _any(store: AsyncEngine, small: SmallStack, query: str) -> bool:
    async with store.connect() as connection:
        return await connection.scalar(text(query), {"run": small.run_id}) is not None
