"""A run whose engine starts and pulls, but dies before it has generated anything."""

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, InstanceId
from psrl.schemas.messages.rollout import TurnRequest, TurnResult
from psrl.schemas.messages.run import StartRun
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

BUDGET, LIMIT_S = 2, 60


class Deadly(ScriptedParts):
    """The engine dies at its first request, every time."""

    deaths = 0

    async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
        if not self.engine_died[instance].is_set():
            self.deaths += 1
            self.engine_died[instance].set()
        raise ApplicationError("the engine failed while generating", type="EngineUnavailable")


@pytest.mark.nightly  # One run in four stands still under the time-skipping server: why is not known yet.
async def test_an_engine_that_dies_at_its_first_generate_uses_up_the_runs_patience(
    skipping: Client, environment: WorkflowEnvironment, run_id: str
) -> None:
    parts = Deadly(instances=1)
    began = await environment.get_current_time()
    deployment = {"n_rollout_instances": 1, "restart_budget": BUDGET, "no_instance_timeout_s": LIMIT_S}
    async with parts.workers(skipping):
        with pytest.raises(WorkflowFailureError) as failure:
            await skipping.execute_workflow(
                TrainingRun.run,
                StartRun(config=minimal_config(deployment=deployment)),
                id=run_id,
                task_queue=ORCHESTRATOR_QUEUE,
            )
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.message.startswith("no rollout instance is left: rollout-0: hold_engine: ")
    assert "the engine died" in cause.message
    # Pauses of 30 and of 60 s; after the second the limit has passed.
    assert parts.deaths == BUDGET + 3
    assert LIMIT_S <= (await environment.get_current_time() - began).total_seconds() < 5 * LIMIT_S
