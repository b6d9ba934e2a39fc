"""Whole runs that are ended early and taken up again, with the real store, trainer and data."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowFailureError, WorkflowHandle

from psrl.schemas.ids import ORCHESTRATOR_QUEUE
from psrl.schemas.messages.run import RunPhase, RunResult, StartRun, StopRun
from tests.support import rewards
from tests.support.promises import promises_hold
from tests.support.rollout import until
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROMPTS, BATCH, GROUP = 12, 2, 2
SLOW = Script(token_s=0.02)
AT_LEAST = 2
"""Steps that are trained on `SOME` rewards, whichever groups get them; three times as many are no epoch."""
SOME = AT_LEAST * BATCH * GROUP + 2 * BATCH * (GROUP - 1)
MANY = 10_000
"""More than a run asks for."""


@pytest.fixture(autouse=True)
def allowance() -> rewards.Allowance:
    """Of this test: a call that an earlier one left waits no longer."""
    rewards.allowance.grant(SOME)
    return rewards.allowance


async def resume(small: SmallStack, accept_changed_data: bool = False) -> WorkflowHandle[Any, RunResult]:
    return await small.client.start_workflow(
        "TrainingRun",
        StartRun(resume=True, accept_changed_data=accept_changed_data),
        id=small.run_id,
        task_queue=ORCHESTRATOR_QUEUE,
        result_type=RunResult,
    )


async def refusal(run: WorkflowHandle[Any, RunResult]) -> str:
    with pytest.raises(WorkflowFailureError) as refused:
        await run.result()
    error: BaseException = refused.value
    while getattr(error, "cause", None) is not None:
        error = error.cause  # type: ignore[attr-defined]
    return str(error)


def whole_epochs(small: SmallStack) -> dict[str, Any]:
    """Two epochs: six steps of two groups each, and again."""
    return small.config(
        PROMPTS,
        psrl={"staleness": 1, "staleness_buffer_entries": BATCH},
        trainer={"total_epochs": 2, "total_training_steps": None, "save_freq": 3},
        reward={"function": "tests.support.rewards:allowed", "timeout_s": 120},
    )


async def trained(store: AsyncEngine, small: SmallStack) -> Counter[tuple[int, int]]:
    """How often each (epoch, row) was trained on."""
    query = "select epoch, row from groups where run_id = :run and purpose = 'train' and status = 'trained'"
    async with store.connect() as connection:
        rows = await connection.execute(text(query), {"run": small.run_id})
        return Counter((epoch, row) for epoch, row in rows)


async def redrawn(store: AsyncEngine, small: SmallStack) -> tuple[int, int]:
    """Groups of a prompt that was drawn before in its epoch, and their segments from before they were drawn or of a
    version before their tag."""
    query = """with again as (
            select g.* from groups g join groups f using (run_id, purpose, epoch, row)
            where run_id = :run and purpose = 'train' and f.group_id < g.group_id)
        select (select count(distinct group_id) from again), (select count(*) from segments s join again a
            using (run_id, group_id) where s.version < a.version_tag or s.started_at < a.created_at)"""
    async with store.connect() as connection:
        groups, segments = (await connection.execute(text(query), {"run": small.run_id})).one()
    return groups, segments


async def held_at(small: SmallStack, version: int) -> bool:
    """So many steps are trained, and a group is in flight that cannot finish."""
    return (await small.status()).version >= version and rewards.allowance.used_up


@pytest.mark.parametrize("now", [False, True], ids=["stop", "stop --now"])
async def test_a_run_stopped_again_and_again_trains_every_prompt_once_per_epoch(
    open_stack: OpenStack, store: AsyncEngine, allowance: rewards.Allowance, now: bool
) -> None:
    async with open_stack(script=SLOW) as small:
        run, version = await small.start(whole_epochs(small)), 0
        for more in (SOME, SOME, MANY):
            await until(partial(held_at, small, version + AT_LEAST))
            await run.signal("stop", StopRun(now=now))
            stopped = await small.finish(run)
            assert stopped.phase is RunPhase.STOPPED
            version = stopped.version
            allowance.grant(more)
            run = await resume(small)
        result = await small.finish(run)
        assert (result.phase, result.version) == (RunPhase.DONE, 12)
        counts = await trained(store, small)
        assert counts == Counter({(epoch, row): 1 for epoch in (0, 1) for row in range(PROMPTS)})
        await promises_hold(store, small.run_id)
        drawn_again, old_tokens = await redrawn(store, small)
        assert drawn_again > 0
        assert old_tokens == 0, "field report 32: a prompt drawn again starts afresh"
        told = await refusal(await resume(small))
    assert told == f"NothingToResume: run {small.run_id!r} is done: all 12 steps were trained"


async def test_changed_data_are_refused_and_begin_a_new_epoch_when_they_are_accepted(
    open_stack: OpenStack, store: AsyncEngine, allowance: rewards.Allowance
) -> None:
    async with open_stack(script=SLOW) as small:
        run = await small.start(whole_epochs(small))
        await until(partial(held_at, small, AT_LEAST))
        await run.signal("stop")
        stopped = await small.finish(run)
        allowance.grant(MANY)
        _append(small.stack.home / "train.jsonl", {"prompt": "7+7=", "reward_model": {"ground_truth": "14"}})
        told = await refusal(await resume(small))
        assert "data files of run" in told
        assert "--accept-changed-data" in told
        assert (await _row(store, small)).phase == "stopped", "a refused resume leaves the run as it was"

        run = await resume(small, accept_changed_data=True)
        result = await small.finish(run)
        assert result.phase is RunPhase.DONE
        assert result.version == (await _row(store, small)).total_steps
        epochs = {epoch for epoch, row in await trained(store, small) if row == PROMPTS}
        assert 0 not in epochs, "the new prompt is no part of the epoch that had begun"
        assert 1 in {epoch for epoch, _ in await trained(store, small)}
        await promises_hold(store, small.run_id)
    assert stopped.version < result.version


def _append(file: Path, row: dict[str, Any]) -> None:
    with file.open("a") as out:
        out.write(json.dumps({"data_source": "sums", **row}) + "\n")


async def _row(store: AsyncEngine, small: SmallStack) -> Any:
    async with store.connect() as connection:
        query = text("select phase, total_steps from runs where run_id = :run")
        return (await connection.execute(query, {"run": small.run_id})).one()
