"""Whole runs that the coordinator steers, with scripted engines: requests move between instances, syncs wait for their
moment, and the coordinator is killed again and again."""

from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.errors import Unreachable
from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import RunPhase
from tests.support.promises import promises_hold
from tests.support.rollout import until
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BUSY, STARVED = InstanceId("rollout-0"), InstanceId("rollout-1")
A_FEW, ALL = 16, 100_000
"""Tokens that an engine may sample."""
KILLS = 20
MOVES = {"enable": True, "threshold": 2}
BY_STATUS = {"method": "status_based", "sync": {"threshold": 1, "max_wait_s": 30}, "mig": MOVES}
BEGUN = """
    select 1 from segments s join trajectories t using (run_id, group_id, index)
    where run_id = :run and s.instance = 'rollout-0' and t.status = 'pending' limit 1"""
MOVED = """
    select count(distinct (group_id, index)) from segments a join segments b using (run_id, group_id, index, turn)
    where run_id = :run and a.instance = 'rollout-0' and b.instance = 'rollout-1' and a.seq < b.seq"""


async def test_some_requests_of_a_busy_instance_go_on_at_a_starved_one_and_nothing_is_lost(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    """The busy engine stands still, so that whatever is finished of its requests was finished elsewhere."""
    async with open_stack(script=Script(manual=True)) as small:
        run = await small.start(steered(small, {"mig": MOVES}, total_training_steps=1))
        await until(partial(_generates, small))
        await small.hosts[BUSY].engines[0].allow(A_FEW)
        await until(partial(_found, store, small, BEGUN))
        await small.hosts[STARVED].engines[0].allow(ALL)
        await until(partial(_found, store, small, MOVED))
        busy = small.hosts[BUSY].engines[0]
        assert busy.aborted, "they were interrupted by name"
        assert busy.running - busy.aborted, "and not all of them"
        await busy.allow(ALL)
        assert (await small.finish(run)).phase is RunPhase.DONE
        kept = await promises_hold(store, small.run_id)
        dropped = (await small.status()).dropped
    assert kept.statuses == {"trained": 2}
    assert dropped == {}


async def test_killing_the_coordinator_twenty_times_costs_nothing_but_time(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    async with open_stack(script=Script(token_s=0.01)) as small:
        run = await small.start(steered(small, BY_STATUS, total_training_steps=1000))
        await until(partial(_trained, small, 1))
        for kill in range(KILLS):
            await until(partial(_whole, small))
            await small.kill_coordinator()
            if kill % 5 == 0:
                await until(partial(_trained, small, (await small.status()).version + 1))
        version = (await small.status()).version
        await until(partial(_trained, small, version + 2))
        instances = (await small.status()).instances
        await run.signal("stop")
        assert (await small.finish(run)).phase is RunPhase.STOPPED
        kept = await promises_hold(store, small.run_id)
        dropped = (await small.status()).dropped
    assert kept.statuses["trained"] == 2 * kept.batches
    assert set(dropped) <= {"aborted"}, "no group was lost"
    assert all(state.startswith("serving") for state in instances.values()), "nobody was restarted for it"
    assert max(kept.ages) <= 1


async def test_a_status_based_run_of_two_instances_never_stands_still(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    """With eta = 0 nothing can be reserved at an old version."""
    async with open_stack(script=Script(token_s=0.01)) as small:
        config = steered(small, BY_STATUS | {"sync": {"threshold": 0, "max_wait_s": 600}}, 6, staleness=0)
        assert (await small.finish(await small.start(config))).phase is RunPhase.DONE
        kept = await promises_hold(store, small.run_id)
    assert kept.statuses == {"trained": 12}


def steered(
    small: SmallStack, strategy: dict[str, Any], total_training_steps: int, staleness: int = 1
) -> dict[str, Any]:
    coordination = {"sync_and_mig_strategy": strategy}
    return small.config(
        psrl={"staleness": staleness, "rollout_n": 4, "flush_tokens": 1, "rollout_coordination": coordination},
        trainer={"total_training_steps": total_training_steps},
    )


async def _generates(small: SmallStack) -> bool:
    return all(host.engines and host.engines[0].running for host in small.hosts.values())


async def _trained(small: SmallStack, version: int) -> bool:
    return (await small.status()).version >= version


async def _whole(small: SmallStack) -> bool:
    """Every instance has told this coordinator how it is."""
    try:
        reports = [one.report for one in (await small.coordinator.fleet()).instances]
    except Unreachable:  # the channel has not noticed that there is another
        return False
    return len(reports) == len(small.hosts) and any(one.state is InstanceState.SERVING for one in reports)


async def _found(store: AsyncEngine, small: SmallStack, query: str) -> bool:
    async with store.connect() as connection:
        return bool(await connection.scalar(text(query), {"run": small.run_id}))
