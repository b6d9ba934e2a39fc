"""Faults reported from comparable systems, as whole runs against scripted parts (docs/field-reports.md lists all)."""

import asyncio
import re
from collections import Counter

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from psrl.schemas.ids import CPU_QUEUE, ORCHESTRATOR_QUEUE, TRAINER_QUEUE, GroupId, InstanceId, rollout_queue
from psrl.schemas.messages.data import Restored, RestoreRequest
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from psrl.schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, GenerateRequest, GenerateResult
from psrl.schemas.messages.run import GroupOutcome, GroupReport, RunPhase, RunResult, RunStatus, StartRun, StopRun
from psrl.schemas.messages.training import StepRequest
from psrl.workflows.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

FILTER = {"enable": True, "name": "dynamic_sampling_filter"}


async def begin(client: Client, run_id: str, config: dict[str, object]):  # type: ignore[no-untyped-def]
    return await client.start_workflow(
        TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
    )


async def run_to_end(client: Client, run_id: str, parts: ScriptedParts, config: dict[str, object]) -> RunResult:
    async with parts.workers(client):
        result: RunResult = await (await begin(client, run_id, config)).result()
        return result


async def failure_of(client: Client, run_id: str, parts: ScriptedParts, config: dict[str, object]) -> str:
    with pytest.raises(WorkflowFailureError) as failed:
        await run_to_end(client, run_id, parts, config)
    return str(failed.value.cause)


async def until(run: object, holds: object, timeout_s: float = 30) -> RunStatus:
    """The first status for which `holds`."""
    async with asyncio.timeout(timeout_s):
        while True:
            status: RunStatus = await run.query(TrainingRun.status)  # type: ignore[attr-defined]
            if holds(status):  # type: ignore[operator]
                return status
            await asyncio.sleep(0.02)


def every_prompt_once(parts: ScriptedParts, prompts: int) -> None:
    assert Counter(parts.places[group] for group in parts.trained) == Counter(range(prompts))


# --- hangs and crash recovery ----------------------------------------------------------------------------------------


class NoCoordinator(ScriptedParts):
    @activity.defn(name="plan_dispatch")
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        raise ApplicationError("the coordinator at 127.0.0.1:1 does not answer", type="Unreachable")


@pytest.mark.parametrize(
    ("parts", "missing", "named"),
    [
        (ScriptedParts, (CPU_QUEUE,), "the cpu worker did not come up within 3 s"),
        (ScriptedParts, (TRAINER_QUEUE,), "the trainer did not come up within 3 s"),
        (
            ScriptedParts,
            tuple(rollout_queue(InstanceId(name)) for name in ("rollout-0", "rollout-1")),
            "did not come up within 3 s (psrl.deployment.start_timeout_s); their logs are rollout-*.log",
        ),
        (NoCoordinator, (), "the coordinator did not come up within 3 s"),
    ],
    ids=["cpu worker", "trainer", "rollout hosts", "coordinator"],
)
async def test_a_role_that_never_registers_fails_the_run_within_the_start_limit_and_is_named(
    client: Client, run_id: str, parts: type[ScriptedParts], missing: tuple[str, ...], named: str
) -> None:
    """1, verl#3895: a run printed only monitor lines."""
    config = minimal_config(deployment={"n_rollout_instances": 2, "start_timeout_s": 3})
    async with parts().workers(client, without=missing):
        run = await begin(client, run_id, config)
        status = await until(run, lambda status: status.phase is RunPhase.FAILED, timeout_s=20)
    assert named in status.reason
    if "rollout" in named:
        assert {"rollout-0", "rollout-1"} <= set(re.findall(r"rollout-\d", status.reason))
