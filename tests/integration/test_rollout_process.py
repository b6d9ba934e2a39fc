"""The rollout host as a process, with a scripted engine: killed, stopped, and driven by its real workflow."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowFailureError

from psrl.schemas.messages.rollout import SegmentEnd
from psrl.schemas.stack import Stack
from psrl.workflows.rollout.instance import RolloutInstance
from tests.support.rollout import (
    PROMPT,
    SPEC,
    add_group,
    call,
    ids_of,
    refused_results,
    stored_segments,
    until,
    with_engine,
)
from tests.support.rollout_process import SCRIPTED, Site, end, open_site
from tests.support.scripted_engine import VARIABLE, scripted_probe, scripted_tokens

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
TOKENS = 40
AT_ONCE = 4
HOLDS_AT = [AT_ONCE * 5, AT_ONCE * 8]
"""An engine is held in the middle of a call, and again in the middle of the next one."""


@pytest.fixture
def script(tmp_path: Path) -> dict[str, Any]:
    return {
        "token_s": 0.01,
        "holds_at": HOLDS_AT,
        "release": str(tmp_path / "release"),
        "sampled_log": str(tmp_path / "sampled"),
    }


@pytest.fixture
async def site(
    temporal_client: Client, stack: Stack, store: AsyncEngine, script: dict[str, Any]
) -> AsyncIterator[Site]:
    await add_group(store, trajectories=AT_ONCE)
    async with open_site(temporal_client, stack, store, {VARIABLE: json.dumps(script)}) as site:
        for version in (0, 1):
            await site.publish(version, {}, scripted_probe(version))
        yield site


def sampled(script: dict[str, Any]) -> int:
    """Tokens that the engines of all processes have sampled."""
    return Path(script["sampled_log"]).stat().st_size


def release(script: dict[str, Any], *holds: int) -> None:
    """For every engine, also those that are held there later."""
    for hold in holds:
        Path(f"{script['release']}.{hold}").touch()


async def stored(store: AsyncEngine) -> int:
    counts = [sum(len(s.ids) for s in await stored_segments(store, index)) for index in range(AT_ONCE)]
    return sum(counts)


async def some_tokens(store: AsyncEngine) -> None:
    async def any_stored() -> bool:
        return bool(await stored_segments(store))

    await until(any_stored)


async def test_a_killed_host_comes_back_and_the_trajectory_goes_on_from_its_prefix(
    site: Site, script: dict[str, Any]
) -> None:
    instance = site.instance()
    first = site.start_host(instance, SCRIPTED)
    second = None
    try:
        workflow = await site.drive(instance, SPEC)
        served = await site.serving(instance, 0)
        lost = await site.generate(instance, call(max_tokens=TOKENS))
        await some_tokens(site.store)
        first.send_signal(signal.SIGKILL)
        release(script, *HOLDS_AT)
        second = site.start_host(instance, SCRIPTED)
        with pytest.raises(WorkflowFailureError):
            await lost.result()
        await site.serving(instance, 0, not_pid=served.pid)
        kept = len(ids_of(await stored_segments(site.store)))
        assert 0 < kept < TOKENS
        rest = await (await site.generate(instance, call(number=1, max_tokens=TOKENS))).result()
        assert (rest.end, rest.tokens, rest.new_tokens) == (SegmentEnd.LENGTH, TOKENS, TOKENS - kept)
        assert ids_of(await stored_segments(site.store)) == scripted_tokens(PROMPT, TOKENS)
        await workflow.signal(RolloutInstance.stop)
        assert await workflow.result() == "stopped"
    finally:
        for process in filter(None, (first, second)):
            end(process)


async def test_a_kill_in_mid_generation_costs_at_most_flush_tokens_per_trajectory(
    site: Site, script: dict[str, Any]
) -> None:
    """Measured at the engine: what it sampled in all, and what is in the store in the end."""
    names = (site.instance(0), site.instance(1))
    killed, other = (site.start_host(name, SCRIPTED) for name in names)
    try:
        for name in names:
            await site.drive(name, SPEC)
        for name in names:
            await site.serving(name, 0)
        calls = [await site.generate(names[0], call(index, max_tokens=TOKENS)) for index in range(AT_ONCE)]
        await some_tokens(site.store)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        lost = sampled(script) - await stored(site.store)
        assert 0 <= lost <= AT_ONCE * SPEC.flush_tokens
        release(script, *HOLDS_AT)
        # Elsewhere as soon as the workflow has noticed; here without waiting for that.
        rest = [await site.generate(names[1], call(index, 1, TOKENS)) for index in range(AT_ONCE)]
        assert [(await handle.result()).tokens for handle in rest] == [TOKENS] * AT_ONCE
        assert sampled(script) == AT_ONCE * TOKENS + lost, "nothing else was generated again"
        for index in range(AT_ONCE):
            assert ids_of(await stored_segments(site.store, index)) == scripted_tokens(PROMPT, TOKENS)
        for handle in calls:
            with pytest.raises(WorkflowFailureError):
                await handle.result()
    finally:
        end(killed)
        end(other)


async def test_a_frozen_host_that_wakes_up_later_has_its_rows_refused_and_counted(
    site: Site, script: dict[str, Any]
) -> None:
    """Field report 21, with the first attempt's process stopped while the second answers: exactly one is accepted."""
    names = (site.instance(0), site.instance(1))
    frozen, other = (site.start_host(name, SCRIPTED) for name in names)
    try:
        for name in names:
            await site.drive(name, SPEC)
        for name in names:
            await site.serving(name, 0)
        # Temporal must not tell the frozen attempt that it is over: the store alone has to refuse it.
        late = await site.generate(names[0], call(max_tokens=TOKENS), heartbeat_s=60)
        await some_tokens(site.store)
        frozen.send_signal(signal.SIGSTOP)
        release(script, *HOLDS_AT)
        try:
            before = ids_of(await stored_segments(site.store))
            result = await (await site.generate(names[1], call(number=1, max_tokens=TOKENS))).result()
            assert (result.end, result.tokens) == (SegmentEnd.LENGTH, TOKENS)
            assert 0 < len(before) == TOKENS - result.new_tokens
            assert await refused_results(site.store) == 0
        finally:
            frozen.send_signal(signal.SIGCONT)
        with pytest.raises(WorkflowFailureError) as caught:
            await late.result()
        assert "StaleAttempt" in str(caught.value.cause)
        assert await refused_results(site.store) == 1
        segments = await stored_segments(site.store)
        assert ids_of(segments) == scripted_tokens(PROMPT, TOKENS)
        assert sorted({segment.fence for segment in segments}) == [1, 1_000_001]
    finally:
        end(frozen)
        end(other)


@pytest.mark.parametrize("script", [{"token_s": 0.02, "stalls_after": 30}])
async def test_a_stuck_engine_is_replaced_in_its_host_and_the_trajectory_goes_on(
    site: Site, script: dict[str, Any]
) -> None:
    instance = site.instance()
    host = site.start_host(instance, SCRIPTED)
    try:
        workflow = await site.drive(instance, with_engine(SPEC, stall_timeout_s=1.0))
        served = await site.serving(instance, 0)
        lost = await site.generate(instance, call(max_tokens=TOKENS))
        with pytest.raises(WorkflowFailureError) as caught:
            await lost.result()
        assert "EngineUnavailable" in str(caught.value.cause)
        assert ids_of(await stored_segments(site.store)) == scripted_tokens(PROMPT, 30), (
            "all that it had sampled is kept"
        )

        async def back() -> bool:
            return [change.state for change in await site.changes()][-2:] == ["starting", "serving"]

        await until(back, timeout_s=60)
        again = await site.serving(instance, 0)
        assert again.pid == served.pid, "the host lives on"
        rest = await (await site.generate(instance, call(number=1, max_tokens=TOKENS))).result()
        assert (rest.tokens, rest.new_tokens) == (TOKENS, TOKENS - 30)
        changes = await site.changes()
        assert any("the engine is stuck: no sign of life for 1 s" in changed.reason for changed in changes)
        await workflow.signal(RolloutInstance.stop)
        assert await workflow.result() == "stopped"
    finally:
        end(host)


async def test_a_sync_interrupts_and_a_stop_signal_loses_no_token(site: Site, script: dict[str, Any]) -> None:
    """Orderly interruptions: every token that the engine sampled is in the store."""
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
        release(script, HOLDS_AT[0])

        async def more_tokens() -> bool:
            return len(ids_of(await stored_segments(site.store))) > interrupted.tokens

        await until(more_tokens)
        host.send_signal(signal.SIGTERM)
        stopped = await second.result()
        assert (stopped.end, stopped.versions) == (SegmentEnd.INTERRUPTED, (1,))
        assert stopped.tokens == interrupted.tokens + stopped.new_tokens
        ids = ids_of(await stored_segments(site.store))
        assert ids == scripted_tokens(PROMPT, stopped.tokens)
        assert sampled(script) == len(ids)
        assert await asyncio.to_thread(host.wait, 60) == 0
    finally:
        end(host)
