"""Whole runs that lose a rollout host."""

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import RunPhase
from tests.support.promises import promises_hold
from tests.support.rollout import until
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

KILLED = InstanceId("rollout-1")
HELD_AT = 30
"""Tokens of the host's engine: no whole number of answers of 12, so that some are unfinished, and stay so."""
UNFINISHED = """
    select 1 from segments s join trajectories t using (run_id, group_id, index)
    where run_id = :run and s.instance = 'rollout-1' and t.status = 'pending' limit 1"""
MOVED = """
    select 1 from segments a join segments b using (run_id, group_id, index, turn)
    join trajectories t using (run_id, group_id, index)
    where run_id = :run and a.instance = 'rollout-1' and b.instance = 'rollout-0' and a.seq < b.seq
      and t.status = 'scored' and t.tokens = 12 limit 1"""


async def test_a_killed_host_loses_no_trajectory_and_serves_again_only_with_current_weights(
    open_stack: OpenStack, store: AsyncEngine, tmp_path: Path
) -> None:
    """Field reports 7 and 13."""
    sampled = tmp_path / "sampled"
    held = Script(holds_at=[HELD_AT], release=str(tmp_path / "never"), sampled_log=str(sampled))
    async with open_stack(script=Script(token_s=0.05), processes=(1,), process_script=held) as small:
        every_token = {"staleness": 1, "flush_tokens": 1}  # However the engine divides them among its requests.
        run = await small.start(small.config(psrl=every_token, trainer={"total_training_steps": 32}))
        await until(partial(_held, sampled))
        await until(partial(_any, store, small, UNFINISHED))
        small.processes[KILLED].kill()
        await until(partial(_any, store, small, MOVED))
        before = (await small.status()).version
        await until(partial(_moved_on, small, before + 2))
        killed = small.processes[KILLED]
        killed.wait()
        small.start_process(KILLED)
        await until(partial(_serves_again, small, killed.pid))
        await run.signal("stop")
        assert (await small.finish(run)).phase is RunPhase.STOPPED
        kept = await promises_hold(store, small.run_id)
        dropped = (await small.status()).dropped
    assert kept.statuses["trained"] == 2 * kept.batches
    assert set(dropped) <= {"aborted"}, "no group failed: what the dead host held went on elsewhere"


async def _held(sampled: Path) -> bool:
    return _size(sampled) == HELD_AT


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


async def _moved_on(small: SmallStack, version: int) -> bool:
    return (await small.status()).version >= version


async def _serves_again(small: SmallStack, old_pid: int) -> bool:
    report = await small.report_of(KILLED)
    if report is None or report.pid == old_pid or report.state is not InstanceState.SERVING:
        return False
    assert report.version > 0, "a restarted host must pull the current version before it serves"
    return True


async def _any(store: AsyncEngine, small: SmallStack, query: str) -> bool:
    async with store.connect() as connection:
        return await connection.scalar(text(query), {"run": small.run_id}) is not None
