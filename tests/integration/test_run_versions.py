"""Runs in which versions meet: instances at different versions, and trajectories that span several."""

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
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BEHIND = InstanceId("rollout-1")
AT_THE_SAME_TIME = """
    select 1 from segments old join segments new using (run_id)
    where run_id = :run and old.version = 0 and old.instance = 'rollout-1' and new.version > 0
      and new.instance = 'rollout-0' and old.started_at < new.finished_at and new.started_at < old.finished_at
    limit 1"""


async def test_two_instances_serve_different_versions_at_the_same_time(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    async with open_stack(script=Script(token_s=0.02)) as small:
        # A slow instance that does not sync for a while: its groups are of version 0 when others are of version 1.
        small.hosts[BEHIND].script = Script(token_s=0.3)
        small.hosts[BEHIND].may_pause.clear()
        run = await small.start(
            small.config(
                psrl={"staleness": 2, "rollout_n": 1},
                algorithm={"norm_adv_by_std_in_grpo": False},
                trainer={"total_training_steps": 4},
            )
        )
        await until(lambda: _found(store, small), timeout_s=60)
        report = await small.report_of(BEHIND)
        assert report is not None
        assert (report.state, report.version) == (InstanceState.SERVING, 0)
        small.hosts[BEHIND].may_pause.set()
        assert (await small.finish(run)).phase is RunPhase.DONE
        kept = await promises_hold(store, small.run_id)
    assert max(kept.ages) >= 1


async def test_a_sync_interrupts_and_the_trajectory_goes_on_from_its_stored_prefix(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    budget = 12
    async with open_stack(script=Script(token_s=0.06)) as small:
        result = await small.run(small.config(psrl={"staleness": 2}, trainer={"total_training_steps": 5}))
        assert result.phase is RunPhase.DONE
        await promises_hold(store, small.run_id)
        rows = await _trajectories(store, small)
    assert any(len({version for version, _ in parts}) > 1 for _, parts in rows), "no sync met a running generation"
    for prompt, parts in rows:
        ids = [token for _, part in parts for token in part]
        assert ids == scripted_tokens(prompt, budget), "what an uninterrupted generation gives, no token more"


async def _found(store: AsyncEngine, small: SmallStack) -> bool:
    async with store.connect() as connection:
        return await connection.scalar(text(AT_THE_SAME_TIME), {"run": small.run_id}) is not None


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
