"""One run under chaos: configuration, start, end, and what the store says of it afterwards."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

from psrl.activities.store.connections import async_store
from psrl.schemas.errors import PsrlError
from psrl.schemas.ids import ORCHESTRATOR_QUEUE
from psrl.schemas.messages.run import RunResult, StartRun
from psrl.schemas.stack import Stack
from psrl.workers.cli.train import read_config
from tests.support.promises import promises_hold
from tests.support.runs import config_values, sums, write_jsonl

from .site import Site

QUICKSTART = Path(__file__).parents[2] / "examples" / "arithmetic" / "quickstart.yaml"
FLUSH_TOKENS = 8
GROUP_SIZE = 4
BATCH_GROUPS = 4
LONGEST = 32
END_TIMEOUT_S = 300.0
CONTEXT = 400
"""Of a conversation."""
AGENTIC: dict[str, Any] = {
    "staleness_buffer_entries": 2,
    "rollout_n": 2,
    "agentic_rl": {
        "agent_loop": "session",
        "agent": "tests.chaos.agent:converse",
        "max_concurrent_agents": 6,
        "agent_timeout_s": 900,
        "retry_limit": 20,
    },
}
"""Smaller batches: each agent is a process, and a worker that is ended takes all of its agents with it."""
HEALS_S = 20
"""An engine that served for so long has its restart budget again: engines are ended about as often, so that some of
them are and others are not."""


@dataclass(frozen=True)
class Shape:
    """What differs between the runs of the modes."""

    steps: int
    eta: int = 2
    prompts: int = 64
    epochs: int = 10_000
    save_freq: int = 2
    agents: bool = False
    restart_budget: int = 2
    """Small, so that instances pass through quarantine and back: what is rare elsewhere is common here."""

    @property
    def deployment(self) -> dict[str, Any]:
        return {"restart_budget": self.restart_budget, "restart_budget_heals_s": HEALS_S}


def configuration(home: Path, shape: Shape) -> dict[str, Any]:
    """A small run in which something is always in flight. The model is made once per home."""
    model, context = home / "tiny-model", CONTEXT if shape.agents else 64
    if not model.exists():
        from tests.support.tiny_model import make_tiny_model

        make_tiny_model(model, context_tokens=context)
    values = config_values(
        model,
        write_jsonl(home / "train.jsonl", sums(shape.prompts)),
        data={"max_prompt_length": 24, "max_response_length": LONGEST},
        rollout={"dtype": "float32", "weight_probe_tolerance": 1e6, "max_model_len": context},
        trainer={"total_training_steps": shape.steps, "total_epochs": shape.epochs, "save_freq": shape.save_freq},
        actor={"ppo_mini_batch_size": BATCH_GROUPS // 2, "optim": {"lr": 1e-3}},
        reward={"function": "tests.support.rewards:length"},
    )
    values["psrl"] = {
        "staleness": shape.eta,
        "staleness_buffer_entries": BATCH_GROUPS,
        "rollout_n": GROUP_SIZE,
        "flush_tokens": FLUSH_TOKENS,
        "deployment": {"n_rollout_instances": 2, "start_timeout_s": 120, **shape.deployment},
        "rollout_coordination": {"routing_strategy": {"max_concurrent_seqs_per_instance": 16}},
        **(AGENTIC if shape.agents else {}),
    }
    parsed: dict[str, Any] = json.loads(json.dumps(values))
    return parsed


def real_configuration(shape: Shape) -> dict[str, Any]:
    """The quick start's model and task for a real engine and trainer; the batch as small as above."""
    overrides = {
        "psrl.staleness": shape.eta,
        "psrl.staleness_buffer_entries": BATCH_GROUPS,
        "psrl.rollout_n": GROUP_SIZE,
        "psrl.flush_tokens": FLUSH_TOKENS,
        "psrl.deployment.start_timeout_s": 300,
        **{f"psrl.deployment.{key}": value for key, value in shape.deployment.items()},
        "trainer.total_training_steps": shape.steps,
        "trainer.total_epochs": shape.epochs,
        "trainer.save_freq": shape.save_freq,
        "data.val_files": "[]",
    }
    values, _ = read_config(QUICKSTART, [f"{key}={value}" for key, value in overrides.items()])
    return values


async def start(site: Site, run: str, config: dict[str, Any]) -> None:
    client = await site.client()
    await client.start_workflow(
        "TrainingRun", StartRun(config=config), id=run, task_queue=ORCHESTRATOR_QUEUE, result_type=RunResult
    )


async def result(site: Site, run: str) -> RunResult:
    """Raises what the run failed with."""
    client = await site.client()
    return await client.get_workflow_handle(run, result_type=RunResult).result()


async def until_ended(site: Site, run: str) -> None:
    """Returns when the run is no longer running, through whatever happens to Temporal."""
    while True:
        with suppress(RPCError, PsrlError):
            client = await site.client()
            if (await client.get_workflow_handle(run).describe()).status is not WorkflowExecutionStatus.RUNNING:
                return
        await asyncio.sleep(1)


async def stop(site: Site, run: str) -> RunResult:
    await (await site.client()).get_workflow_handle(run).signal("stop")
    return await asyncio.wait_for(result(site, run), END_TIMEOUT_S)


@dataclass(frozen=True)
class Left:
    """What a finished run left in the store."""

    steps: int
    trained_trajectories: int
    groups: dict[str, int]
    faults: tuple[str, ...]
    """Broken promises; empty when all hold."""


async def left_by(stack: Stack, run: str) -> Left:
    engine = async_store(stack.postgres_url)
    try:
        faults: Sequence[str] = ()
        try:
            await promises_hold(engine, run, stack.weights_dir)
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
