"""The step of one buffer, as a child workflow: started, watched, abandoned. Used by `TrainingRun`."""

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError, TerminatedError
from temporalio.exceptions import TimeoutError as ChildTimeout

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import step_workflow
    from ...schemas.messages.run import StartStep, StepReport
    from ..calls.tasks import end
    from ..search import attributes
    from ..training.step import TrainStep
    from .faults import UNREACHABLE


async def train(
    start: StartStep, abandoned: Callable[[], bool], ended: Callable[[], None], budget: int
) -> StepReport | None:
    """`None`: it was abandoned; what it had begun is found again by `resume`. A step that was ended from outside is
    begun anew within the budget: its stages are idempotent. One that failed has failed. `ended` is called however one
    ends."""
    name = step_workflow(start.run_id, start.buffer)
    for restarts in range(budget + 1):
        step = await workflow.start_child_workflow(
            TrainStep.run,
            start,
            id=name,
            static_summary=f"step {start.buffer}: {len(start.taken)} groups",
            search_attributes=attributes(start.run_id, step=start.buffer),
        )
        await workflow.wait_condition(lambda step=step: step.done() or abandoned())  # type: ignore[misc]
        given_up = not step.done()
        await end(step)
        ended()
        if given_up:
            return None
        try:
            return step.result()
        except ChildWorkflowError as error:
            if not isinstance(error.cause, TerminatedError | ChildTimeout):
                raise
            workflow.logger.warning("%s was ended from outside: %s", name, error.cause)
            reason = f"{name} has no result: {error.cause} (restarted {restarts} times)"
    raise ApplicationError(reason, type=UNREACHABLE, non_retryable=True)
