"""Runs in which versions meet: instances at different versions, and trajectories that span several."""

from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.store.codec import decode_ids
from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import RunPhase
from psrl.schemas.tables import Group, Segment, Trajectory
from tests.support.promises import promises_hold
from tests.support.rollout import until
from tests.support.scripted_engine import Script, scripted_tokens
from tests.support.small_stack import InProcessHost, OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

HELD = InstanceId("rollout-1")
A_FEW, ALL = 3, 100_000
"""Tokens that a held engine may sample."""
GROUPS_OF_ONE: dict[str, dict[str, Any]] = {
    "psrl": {"staleness": 2, "rollout_n": 1},
    "algorithm": {"norm_adv_by_std_in_grpo": False},
}
"""A group is on one instance: while one is held, those of the other one go on."""
NEWER = "select 1 from segments where run_id = :run and instance = 'rollout-0' and version > 0 limit 1"


async def test_two_instances_serve_different_versions_at_the_same_time(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    async with open_stack(script=Script(token_s=0.02)) as small:
        held = small.hosts[HELD]
        held.script = Script(manual=True)
        held.may_pause.clear()
        run = await small.start(small.config(trainer={"total_training_steps": 4}, **GROUPS_OF_ONE))
        await until(lambda: _in_progress(held))
        await held.engines[0].allow(A_FEW)
        await until(lambda: _found(store, small))
        report = await small.report_of(HELD)
        assert report is not None
        assert (report.state, report.version) == (InstanceState.SERVING, 0)
        assert held.engines[0].running, "it generates with version 0 while the other one has used a newer"
        await held.engines[0].allow(ALL)
        held.may_pause.set()
        assert (await small.finish(run)).phase is RunPhase.DONE
        kept = await promises_hold(store, small.run_id)
    assert max(kept.ages) >= 1


async def test_a_sync_interrupts_and_the_trajectory_goes_on_from_its_stored_prefix(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    budget = 12
    async with open_stack(script=Script(token_s=0.02)) as small:
        held = small.hosts[HELD]
        held.script = Script(manual=True)
        run = await small.start(small.config(trainer={"total_training_steps": 5}, **GROUPS_OF_ONE))
        await until(lambda: _in_progress(held))
        await held.engines[0].allow(A_FEW)
        await until(lambda: _synced(held))
        await held.engines[0].allow(ALL)
        assert (await small.finish(run)).phase is RunPhase.DONE
        await promises_hold(store, small.run_id)
        rows = await _trajectories(store, small)
    assert any(len({version for version, _ in parts}) > 1 for _, parts in rows)
    for prompt, parts in rows:
        ids = [token for _, part in parts for token in part]
        assert ids == scripted_tokens(prompt, budget), "what an uninterrupted generation gives, no token more"


async def _in_progress(host: InProcessHost) -> bool:
    return bool(host.engines and host.engines[0].running)


async def _synced(host: InProcessHost) -> bool:
    return host.engines[0].loaded[-1] > 0


async def _found(store: AsyncEngine, small: SmallStack) -> bool:
    async with store.connect() as connection:
        return await connection.scalar(text(NEWER), {"run": small.run_id}) is not None


async def _trajectories(store: AsyncEngine, small: SmallStack) -> list[tuple[list[int], list[tuple[int, list[int]]]]]:
    """Of every scored trajectory: its prompt, and (version, ids) of its segments in order."""
    query = (
        select(Trajectory.group_id, Trajectory.index, Group.prompt_ids, Segment.version, Segment.token_ids)
        .join(Group, (Group.run_id == Trajectory.run_id) & (Group.group_id == Trajectory.group_id))
        .join(
            Segment,
            (Segment.run_id == Trajectory.run_id)
            & (Segment.group_id == Trajectory.group_id)
            & (Segment.index == Trajectory.index),
        )
        .where(Trajectory.run_id == small.run_id, Trajectory.status == "scored")
        .order_by(Trajectory.group_id, Trajectory.index, Segment.turn, Segment.seq)
    )
    found: dict[tuple[str, int], tuple[list[int], list[tuple[int, list[int]]]]] = {}
    async with store.connect() as connection:
        for group, index, prompt, version, ids in (await connection.execute(query)).all():
            entry = found.setdefault((group, index), (decode_ids(prompt), []))
            entry[1].append((version, decode_ids(ids)))
    return list(found.values())
