"""The rollout host as a process, with a scripted engine: killed, stopped, and driven by its real workflow."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowFailureError

from psrl.schemas.messages.rollout import SegmentEnd
from psrl.schemas.stack import Stack
from psrl.workflows.rollout_instance import RolloutInstance
from tests.support.rollout import PROMPT, SPEC, add_group, call, ids_of, stored_segments, until
from tests.support.rollout_process import SCRIPTED, Site, end, open_site
from tests.support.scripted_engine import VARIABLE, scripted_probe, scripted_tokens

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
TOKENS = 40


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine) -> AsyncIterator[Site]:
    await add_group(store)
    async with open_site(temporal_client, stack, store, {VARIABLE: json.dumps({"token_s": 0.05})}) as site:
        for version in (0, 1):
            await site.publish(version, {}, scripted_probe(version))
        yield site


async def some_tokens(store: AsyncEngine) -> None:
    async def stored() -> bool:
        return bool(await stored_segments(store))

    await until(stored)


async def test_a_killed_host_comes_back_and_the_trajectory_goes_on_from_its_prefix(site: Site) -> None:
    instance = site.instance()
    first = site.start_host(instance, SCRIPTED)
    second = None
    try:
        workflow = await site.drive(instance, SPEC)
        served = await site.serving(instance, 0)
        lost = await site.generate(instance, call(max_tokens=TOKENS))
        await some_tokens(site.store)
        first.send_signal(signal.SIGKILL)
        second = site.start_host(instance, SCRIPTED)
        with pytest.raises(WorkflowFailureError):
            await lost.result()
        await site.serving(instance, 0, not_pid=served.pid)
        stored = len(ids_of(await stored_segments(site.store)))
        assert 0 < stored < TOKENS
        rest = await (await site.generate(instance, call(number=1, max_tokens=TOKENS))).result()
        assert (rest.end, rest.tokens, rest.new_tokens) == (SegmentEnd.LENGTH, TOKENS, TOKENS - stored)
        assert ids_of(await stored_segments(site.store)) == scripted_tokens(PROMPT, TOKENS)
        await workflow.signal(RolloutInstance.stop)
        assert await workflow.result() == "stopped"
    finally:
        for process in filter(None, (first, second)):
            end(process)


async def test_a_sync_interrupts_and_a_stop_signal_loses_no_token(site: Site) -> None:
    instance = site.instance()
    host = site.start_host(instance, SCRIPTED)
    try:
        workflow = await site.drive(instance, SPEC)
        await site.serving(instance, 0)
        first = await site.generate(instance, call(max_tokens=TOKENS))
        await some_tokens(site.store)
        await workflow.signal(RolloutInstance.sync, 1)
        interrupted = await first.result()
        assert (interrupted.end, interrupted.versions) == (SegmentEnd.INTERRUPTED, (0,))
        await site.serving(instance, 1)
        second = await site.generate(instance, call(number=1, max_tokens=TOKENS, tag=1))
        await asyncio.sleep(0.5)
        host.send_signal(signal.SIGTERM)
        stopped = await second.result()
        assert (stopped.end, stopped.versions) == (SegmentEnd.INTERRUPTED, (1,))
        assert stopped.tokens == interrupted.tokens + stopped.new_tokens
        ids = ids_of(await stored_segments(site.store))
        assert ids == scripted_tokens(PROMPT, stopped.tokens)
        assert await asyncio.to_thread(host.wait, 10) == 0
    finally:
        end(host)
