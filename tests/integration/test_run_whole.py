"""Whole runs over real PostgreSQL, Temporal, coordinator and trainer, with scripted engines: the promises, read from
the store after each."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.messages.run import RunPhase
from tests.support import rewards
from tests.support.histories import local_activities, replay
from tests.support.promises import promises_hold
from tests.support.runs import sums
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.mark.parametrize(("eta", "group_size"), [(0, 1), (1, 4), (2, 8)])
async def test_a_run_keeps_its_promises(open_stack: OpenStack, store: AsyncEngine, eta: int, group_size: int) -> None:
    async with open_stack() as small:
        algorithm = {"norm_adv_by_std_in_grpo": group_size > 1}
        result = await small.run(small.config(psrl={"staleness": eta, "rollout_n": group_size}, algorithm=algorithm))
        assert (result.phase, result.steps, result.version) == (RunPhase.DONE, 3, 3)
        kept = await promises_hold(store, small.run_id)
    assert (kept.batches, kept.trained_groups) == (3, 3 * 2)
    assert kept.statuses == {"trained": 6}, "every drawn group was needed"
    assert max(kept.ages) <= eta


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
