"""Workflows that stand in for a run and start one step.

In a file of their own, because the sandbox imports the file of a workflow anew with all that it imports."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from psrl.schemas.messages.run import StartStep, StepHeld, StepReport
    from psrl.workflows.training.step import TrainStep


@workflow.defn
class StepParent:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self._told: list[StepHeld] = []

    @workflow.run
    async def run(self, start: StartStep) -> list[StepHeld]:
        await workflow.execute_child_workflow(TrainStep.run, start, id=f"{workflow.info().workflow_id}/step")
        return self._told

    @workflow.signal
    def step_held(self, held: StepHeld) -> None:
        self._told.append(held)


@workflow.defn
class DeafParent:
    """Knows no signal."""

    @workflow.run
    async def run(self, start: StartStep) -> StepReport:
        return await workflow.execute_child_workflow(TrainStep.run, start, id=f"{workflow.info().workflow_id}/step")
