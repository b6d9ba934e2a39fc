"""Faults reported from comparable systems, as whole runs on real services (docs/field-reports.md lists all)."""

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import WorkflowHandle

from psrl.activities.data.tokenizer import load_tokenizer
from psrl.activities.store.codec import decode_ids
from psrl.activities.store.connections import sync_store
from psrl.schemas.ids import ORCHESTRATOR_QUEUE
from psrl.schemas.messages.run import RunPhase, RunResult, StartRun
from psrl.workers.trainer.batches import read_batch
from tests.support import rewards, scripted_engine
from tests.support.promises import promises_hold
from tests.support.rollout import until
from tests.support.runs import ids_of
from tests.support.scripted_engine import Script
from tests.support.small_stack import OpenStack, SmallStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ONE_EACH = {"norm_adv_by_std_in_grpo": False}
"""For groups of one trajectory."""


@pytest.fixture
def gates() -> Iterator[dict[int, Any]]:
    rewards.gates.clear()
    yield rewards.gates
    for gate in rewards.gates.values():
        gate.set()


async def resume(small: SmallStack) -> WorkflowHandle[Any, RunResult]:
    return await small.client.start_workflow(
        "TrainingRun",
        StartRun(resume=True),
        id=small.run_id,
        task_queue=ORCHESTRATOR_QUEUE,
        result_type=RunResult,
    )


def numbered(count: int, digits: random.Random | None = None) -> list[dict[str, Any]]:
    """Prompts of different lengths: with `Script(stop_after=…)` their answers have different lengths too."""
    return [
        {
            "prompt": f"{number}+{'1' * (digits.randint(1, 12) if digits else 1)}=",
            "data_source": "sums",
            "reward_model": {"ground_truth": "0"},
            "extra_info": {"number": number},
        }
        for number in range(count)
    ]


async def rows_by_buffer(store: AsyncEngine, small: SmallStack) -> list[list[int]]:
    query = """select buffer, row from batch_members join groups using (run_id, group_id)
        where run_id = :run group by buffer, row order by buffer, row"""
    found: dict[int, list[int]] = {}
    async with store.connect() as connection:
        for buffer, row in await connection.execute(text(query), {"run": small.run_id}):
            found.setdefault(buffer, []).append(row)
    return [found[buffer] for buffer in sorted(found)]


async def at_version(small: SmallStack, version: int) -> bool:
    return (await small.status()).version >= version


async def test_without_staleness_every_token_is_of_the_version_that_is_trained(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    """26, verl#4449: eta = 0, random lengths, 50 steps."""
    async with open_stack(script=Script(stop_after=9)) as small:
        config = small.config(
            numbered(100, random.Random(0)),
            psrl={"staleness": 0, "staleness_buffer_entries": 2, "rollout_n": 1},
            algorithm=ONE_EACH,
            trainer={"total_training_steps": 50},
        )
        assert (await small.run(config)).version == 50
        kept = await promises_hold(store, small.run_id)
        query = """select m.buffer - s.version, count(*) from batch_members m
            join segments s using (run_id, group_id, index) where m.run_id = :run group by 1"""
        lengths = "select count(distinct tokens) from trajectories where run_id = :run"
        async with store.connect() as connection:
            ages = (await connection.execute(text(query), {"run": small.run_id})).all()
            assert await connection.scalar(text(lengths), {"run": small.run_id}) > 5
    assert kept.batches == 50
    assert [age for age, _ in ages] == [0]


async def test_the_ids_that_are_trained_on_are_those_that_were_sampled(
    open_stack: OpenStack, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """51, trl#5224: ids that another encoding of their text would not give."""
    spelled = ids_of("<|user|>")
    monkeypatch.setattr(scripted_engine, "token_at", lambda previous, position: spelled[position % len(spelled)])
    async with open_stack(instances=1) as small:
        assert (await small.run(small.config(trainer={"total_training_steps": 1}))).phase is RunPhase.DONE
        engine = sync_store(small.stack.postgres_url)
        batch = read_batch(engine, small.run_id, 2, 0)
        engine.dispose()
        async with store.connect() as connection:
            of_group = text("select prompt_ids from groups where run_id = :run order by group_id limit 1")
            prompt = decode_ids(await connection.scalar(of_group, {"run": small.run_id}))
    for sequence in batch.sequences:
        ids = sequence.ids.tolist()
        places = range(sequence.prompt_tokens, len(ids))
        sampled = [spelled[place % len(spelled)] for place in places]
        assert ids[sequence.prompt_tokens :] == sampled
        tokenizer = load_tokenizer(str(small.model), False)
        assert tokenizer(tokenizer.decode(sampled), add_special_tokens=False)["input_ids"] != sampled
    assert batch.sequences[0].ids[: len(prompt)].tolist() == prompt


async def test_what_was_generated_ahead_is_trained_first_after_a_resume(
    open_stack: OpenStack, store: AsyncEngine, gates: dict[int, Any]
) -> None:
    """107, OpenRLHF#1322, PR#1323: ids 0..7, generate 4, train 2, saved after [0, 1] -> next [2, 3], then 4..7."""
    async with open_stack(script=Script(), instances=1) as small:
        config = small.config(
            numbered(8),
            data={"shuffle": False},
            psrl={"staleness": 1, "staleness_buffer_entries": 2, "rollout_n": 1},
            algorithm=ONE_EACH,
            trainer={"total_training_steps": None, "total_epochs": 1},
            reward={"function": "tests.support.rewards:gated"},
        )
        run = await small.start(config)
        await until(partial(_known, gates, 4), timeout_s=60)
        await run.signal("pause")
        for row in (2, 3):
            gates[row].set()
        await until(partial(_occupied, small, 2), timeout_s=60)
        # Two others would fill the batch as well: what decides is who was complete first.
        for row in (0, 1):
            gates[row].set()
        await until(partial(_occupied, small, 4), timeout_s=60)
        await run.signal("resume")
        await until(partial(at_version, small, 1), timeout_s=60)
        await run.signal("pause")
        first = (await rows_by_buffer(store, small))[0]
        assert first == [2, 3]
        await run.signal("stop")
        stopped = await small.finish(run)
        assert stopped.phase is RunPhase.STOPPED
        for row in range(4, 8):
            gates.setdefault(row, rewards.threading.Event()).set()
        assert (await small.finish(await resume(small))).phase is RunPhase.DONE
        taken = await rows_by_buffer(store, small)
        assert taken[:2] == [[2, 3], [0, 1]]
        assert sorted(row for rows in taken[2:] for row in rows) == [4, 5, 6, 7]
        again = "select count(*) from groups where run_id = :run and row < 4"
        async with store.connect() as connection:
            assert await connection.scalar(text(again), {"run": small.run_id}) == 4, "none was generated again"


async def _known(gates: dict[int, Any], count: int) -> bool:
    return len(gates) >= count


async def _occupied(small: SmallStack, groups: int) -> bool:
    return (await small.status()).occupied_groups >= groups


async def test_the_tail_of_the_data_is_left_by_rule_and_the_order_does_not_begin_anew(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    """108, OpenRLHF#1320, PR#1321: ids 0, 1, 2 in batches of 2. Batches are whole here: the tail of the last epoch is
    not drawn (docs/configuration.md), and no prompt is drawn twice for it."""
    async with open_stack(instances=1) as small:
        config = small.config(
            numbered(3),
            data={"shuffle": False},
            psrl={"staleness": 1, "staleness_buffer_entries": 2},
            trainer={"total_training_steps": None, "total_epochs": 1},
        )
        assert (await small.run(config)).phase is RunPhase.DONE
        assert await rows_by_buffer(store, small) == [[0, 1]]
        assert (await promises_hold(store, small.run_id)).statuses == {"trained": 2}


async def test_over_long_prompts_leave_no_gap_in_a_batch(open_stack: OpenStack, store: AsyncEngine) -> None:
    """129, rllm PR#280, PR#275; trl#3569, PR#5299: skipped and counted, and the batch is refilled."""
    rows = numbered(8)
    for long in (1, 2, 5):
        rows[long]["prompt"] = "1" * 3302
    async with open_stack(instances=1) as small:
        config = small.config(
            rows,
            data={"shuffle": False, "max_prompt_length": 24, "max_response_length": 12},
            psrl={"staleness": 1, "staleness_buffer_entries": 2},
            trainer={"total_training_steps": None, "total_epochs": 1},
        )
        assert (await small.run(config)).phase is RunPhase.DONE
        assert sorted(row for taken in await rows_by_buffer(store, small) for row in taken) == [0, 3, 4, 6]
        assert (await promises_hold(store, small.run_id)).batches == 2
        skipped = "select skipped_too_long from runs where run_id = :run"
        async with store.connect() as connection:
            assert await connection.scalar(text(skipped), {"run": small.run_id}) == 3


PROMPTS, KILLS = 1000, 10


@pytest.mark.timeout(480)
async def test_a_run_killed_ten_times_trains_every_prompt_once_and_loses_no_long_answer(
    open_stack: OpenStack, store: AsyncEngine
) -> None:
    """106, NeMo-RL PR#3599: the cursor ran ahead of training, and long rollouts were lost."""
    batch = PROMPTS // 20
    script = Script(stop_after=9, token_s=0.01)
    async with open_stack(script=script) as small:
        rows = numbered(PROMPTS, random.Random(1))
        config = small.config(
            rows,
            psrl={"staleness": 1, "staleness_buffer_entries": batch, "rollout_n": 1},
            algorithm=ONE_EACH,
            trainer={"total_training_steps": None, "total_epochs": 1, "save_freq": 4},
        )
        run = await small.start(config)
        for kill in range(KILLS):
            await until(partial(at_version, small, 1 + kill), timeout_s=60)
            await run.terminate()
            run = await resume(small)
        assert (await small.finish(run)).version == 20
        await promises_hold(store, small.run_id)
        trained = """select g.row, t.tokens from batch_members m join groups g using (run_id, group_id)
            join trajectories t using (run_id, group_id, index) where m.run_id = :run"""
        async with store.connect() as connection:
            found = (await connection.execute(text(trained), {"run": small.run_id})).all()
        undisturbed = Counter(_answer(len(ids_of(row["prompt"])), 9, 12) for row in rows)
    assert Counter(row for row, _ in found) == Counter(range(PROMPTS))
    assert Counter(tokens for _, tokens in found) == undisturbed


def _answer(prompt: int, stop_after: int, budget: int) -> int:
    """Length of an uninterrupted answer: it ends at the first place that the script says."""
    return next((n + 1 for n in range(budget) if (prompt + n) % stop_after == 0), budget)
