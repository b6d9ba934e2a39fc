"""A run whose engine starts and pulls, but dies before it has generated anything."""

import asyncio

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, InstanceId, RunId, instance_workflow
from psrl.schemas.messages.rollout import InstanceState, TurnRequest, TurnResult
from psrl.schemas.messages.run import StartRun
from psrl.workflows.rollout.instance import RolloutInstance
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

BUDGET, LIMIT_S = 2, 60


class Deadly(ScriptedParts):
    """The engine dies at its first request, every time."""

    def __init__(self, client: Client, run_id: RunId) -> None:
        super().__init__(instances=1)
        self._client, self._run_id = client, run_id
        self.deaths = 0

    async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
        await self._until_serving(instance)
        if not self.engine_died[instance].is_set():
            self.deaths += 1
            self.engine_died[instance].set()
        raise ApplicationError("the engine failed while generating", type="EngineUnavailable")

    async def _until_serving(self, instance: InstanceId) -> None:
        """Until the instance's workflow knows that its engine serves, or it has died. A death before that cancels
        `resume`, and the time-skipping server loses a workflow task that cancels an activity which has just ended."""
        workflow = self._client.get_workflow_handle_for(RolloutInstance.run, instance_workflow(self._run_id, instance))
        while not self.engine_died[instance].is_set():
            if (await workflow.query(RolloutInstance.status)).state is InstanceState.SERVING:
                return
            await asyncio.sleep(0.01)


async def test_an_engine_that_dies_at_its_first_generate_uses_up_the_runs_patience(
    skipping: Client, environment: WorkflowEnvironment, run_id: str
) -> None:
    parts = Deadly(skipping, RunId(run_id))
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
