"""One run under chaos: configuration, start, end, and what the store says of it afterwards."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from psrl.activities.store.engine import async_engine
from psrl.schemas.ids import ORCHESTRATOR_QUEUE
from psrl.schemas.messages.run import RunResult, StartRun
from psrl.schemas.stack import Stack
from tests.support.promises import promises_hold
from tests.support.runs import config_values, sums, write_jsonl

FLUSH_TOKENS = 8
GROUP_SIZE = 4
BATCH_GROUPS = 4
LONGEST = 32
END_TIMEOUT_S = 300.0
ENDLESS_BUDGET = {"restart_budget": 1000, "restart_budget_heals_s": 5}
"""An engine is ended dozens of times on purpose: that is no reason to do without it."""


@dataclass(frozen=True)
class Shape:
    """What differs between the runs of the modes."""

    steps: int
    eta: int = 2
    prompts: int = 64
    epochs: int = 10_000
    save_freq: int = 2


def configuration(home: Path, shape: Shape) -> dict[str, Any]:
    """A small run in which something is always in flight. The model is made once per home."""
    model = home / "tiny-model"
    if not model.exists():
        from tests.support.tiny_model import make_tiny_model

        make_tiny_model(model)
    values = config_values(
        model,
        write_jsonl(home / "train.jsonl", sums(shape.prompts)),
        data={"max_prompt_length": 24, "max_response_length": LONGEST},
        rollout={"dtype": "float32", "weight_probe_tolerance": 1e6},
        trainer={"total_training_steps": shape.steps, "total_epochs": shape.epochs, "save_freq": shape.save_freq},
        actor={"ppo_mini_batch_size": BATCH_GROUPS // 2, "optim": {"lr": 1e-3}},
        reward={"function": "tests.support.rewards:length"},
    )
    values["psrl"] = {
        "staleness": shape.eta,
        "staleness_buffer_entries": BATCH_GROUPS,
        "rollout_n": GROUP_SIZE,
        "flush_tokens": FLUSH_TOKENS,
        "deployment": {"n_rollout_instances": 2, "start_timeout_s": 120, **ENDLESS_BUDGET},
        "rollout_coordination": {"routing_strategy": {"max_concurrent_seqs_per_instance": 16}},
    }
    parsed: dict[str, Any] = json.loads(json.dumps(values))
    return parsed


async def start(client: Client, run: str, config: dict[str, Any]) -> WorkflowHandle[Any, RunResult]:
    return await client.start_workflow(
        "TrainingRun", StartRun(config=config), id=run, task_queue=ORCHESTRATOR_QUEUE, result_type=RunResult
    )


async def until_ended(handle: WorkflowHandle[Any, RunResult]) -> None:
    """Returns when the run is no longer running, through whatever happens to Temporal."""
    while True:
        with suppress(RPCError):
            if (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING:
                return
        await asyncio.sleep(1)


async def stop(handle: WorkflowHandle[Any, RunResult]) -> RunResult:
    await handle.signal("stop")
    return await asyncio.wait_for(handle.result(), END_TIMEOUT_S)


@dataclass(frozen=True)
class Left:
    """What a finished run left in the store."""

    steps: int
    trained_trajectories: int
    groups: dict[str, int]
    faults: tuple[str, ...]
    """Broken promises; empty when all hold."""


async def left_by(stack: Stack, run: str) -> Left:
    engine = async_engine(stack.postgres_url)
    try:
        faults: Sequence[str] = ()
        try:
            await promises_hold(engine, run)
        except AssertionError as error:
            faults = (str(error),)
        async with engine.connect() as connection:

            async def rows(query: str) -> list[Any]:
                return list((await connection.execute(text(query), {"run": run})).all())

            statuses = await rows("select status, count(*) from groups where run_id = :run group by status")
            [(steps,)] = await rows("select count(*) from batches where run_id = :run")
            [(trained,)] = await rows("select count(*) from batch_members where run_id = :run")
        return Left(steps, trained, {status: int(count) for status, count in statuses}, tuple(faults))
    finally:
        await engine.dispose()
