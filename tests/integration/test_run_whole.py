"""Whole runs over real PostgreSQL, Temporal, coordinator and trainer, with scripted engines: the promises, read from
the store after each."""

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner

from psrl.schemas.errors import RunUnknown
from psrl.schemas.messages.run import RunPhase
from psrl.workers.cli.audit import audit_run
from psrl.workers.cli.commands import app
from tests.support import rewards
from tests.support.histories import local_activities, replay
from tests.support.promises import promises_hold
from tests.support.runs import sums
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

REWARDS_OF_A_STEP = 4
"""Two groups of two."""


@pytest.mark.parametrize(("eta", "group_size"), [(0, 1), (1, 4), (2, 8)])
async def test_a_run_keeps_its_promises(open_stack: OpenStack, store: AsyncEngine, eta: int, group_size: int) -> None:
    async with open_stack() as small:
        algorithm = {"norm_adv_by_std_in_grpo": group_size > 1}
        result = await small.run(small.config(psrl={"staleness": eta, "rollout_n": group_size}, algorithm=algorithm))
        assert (result.phase, result.steps, result.version) == (RunPhase.DONE, 3, 3)
        kept = await promises_hold(store, small.run_id, small.stack.weights_dir)
        await _audited_as_people_do(small)
    assert (kept.batches, kept.trained_groups) == (3, 3 * 2)
    assert kept.statuses == {"trained": 6}, "every drawn group was needed"
    assert max(kept.ages) <= eta


async def _audited_as_people_do(small: SmallStack) -> None:
    """Clean; and not when one reward of a trained trajectory is gone."""
    found = await asyncio.to_thread(CliRunner().invoke, app, ["audit", small.run_id])
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["L1", "L2", "L5", "L6", "L8", "L9", "L10", "run"]
    assert "6 groups" in lines[1]
    assert "4 versions published, 4 kept on disk and checked" in lines[5]
    async with small.store.begin() as connection:
        await connection.execute(text("UPDATE trajectories SET reward = NULL WHERE group_id = '000004'"))
    found = await asyncio.to_thread(CliRunner().invoke, app, ["audit", small.run_id])
    assert found.exit_code == 1
    assert "BROKEN: L10" in found.stdout


async def test_the_audit_is_clean_at_every_moment_of_a_run(open_stack: OpenStack) -> None:
    """It reads one snapshot; versions are retired while it looks at their files. The run gets rewards for one step
    when an audit has seen that it stands still, and goes on beside the audits of the next."""
    async with open_stack(script=Script(token_s=0.01)) as small:
        reward = {"function": "tests.support.rewards:allowed", "timeout_s": 120}
        rewards.allowance.grant(REWARDS_OF_A_STEP)
        config = small.config(psrl={"staleness": 1}, trainer={"total_training_steps": 8}, reward=reward)
        finished = asyncio.create_task(small.finish(await small.start(config)))
        audits = []
        while not finished.done():
            standing = rewards.allowance.used_up
            with suppress(RunUnknown):  # not admitted yet
                audits.append(await asyncio.to_thread(audit_run, small.stack, small.run_id))
            if standing:
                rewards.allowance.add(REWARDS_OF_A_STEP)
            await asyncio.wait([finished], timeout=0.1)
        assert (await finished).phase is RunPhase.DONE
    assert not [check for audit in audits for check in audit.checks if not check.ok]
    batches = {audit.checks[1].counts["batches"] for audit in audits}
    assert len(batches) >= 3, "the audits met the run in several of its steps"


async def test_a_run_whose_workflows_are_never_cached_ends_the_same(open_stack: OpenStack, store: AsyncEngine) -> None:
    """Every workflow task replays the whole history: a decision that depends on anything else would show."""
    async with open_stack(cached_workflows=0, instances=1) as small:
        result = await small.run(small.config())
        assert result.phase is RunPhase.DONE
        assert (await promises_hold(store, small.run_id)).statuses == {"trained": 6}


async def test_every_history_of_a_run_replays_and_the_run_has_no_local_activity(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    """docs/decisions/continue-as-new.md says why a run may have none."""
    async with open_stack(script=Script(token_s=0.02)) as small:
        config = small.config(psrl={"staleness": 2})
        config["data"]["val_files"] = config["data"]["train_files"]
        config["data"]["val_max_samples"] = 2
        await small.run(config)
        kept = await promises_hold(store, small.run_id)
        executions = kept.drawn_groups + 3 + 3 + 2 + 2
        histories = await small.histories(executions)
    assert {kind: len(found) for kind, found in histories.items()} == {
        "TrainingRun": 3,
        "RolloutGroup": kept.drawn_groups,
        "TrainStep": 3,
        "RolloutInstance": 2,
        "Evaluation": 2,
    }
    for history in (history for found in histories.values() for history in found):
        await replay(history)
    assert not any(local_activities(history) for history in histories["TrainingRun"])
    assert any(local_activities(history) for history in histories["RolloutGroup"]), "what the check looks for exists"


async def test_the_run_ends_with_the_last_full_batch_of_the_data(open_stack: OpenStack, store: AsyncEngine) -> None:
    """10 prompts in batches of 4: two steps; the two prompts of the tail are not drawn."""
    async with open_stack(instances=1) as small:
        config = small.config(
            10,
            psrl={"staleness": 2, "staleness_buffer_entries": 4},
            trainer={"total_training_steps": None, "total_epochs": 1},
        )
        result = await small.run(config)
        assert (result.phase, result.steps) == (RunPhase.DONE, 2)
        assert (await promises_hold(store, small.run_id)).statuses == {"trained": 8}


async def test_lost_and_filtered_groups_are_replaced_one_for_one_and_never_trained_in_part(
    open_stack: OpenStack, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group whose reward never comes, one of which 3 of 8 fail, one whose rewards are all equal."""
    monkeypatch.setattr(rewards, "troubled", {})
    async with open_stack() as small:
        run = await small.start(
            small.config(
                sums(40),
                data={"shuffle": False},
                psrl={
                    "rollout_n": 8,
                    "group_post_process": {"enable": True, "name": "dynamic_sampling_filter"},
                },
                reward={"function": "tests.support.rewards:in_trouble", "max_attempts": 1},
            )
        )
        assert (await small.finish(run)).phase is RunPhase.DONE
        dropped = (await small.status()).dropped
        kept = await promises_hold(store, small.run_id)
    assert dropped == {"failed": 2, "filtered": 1}
    assert kept.statuses == {"trained": 6, "failed": 2, "filtered": 1}
