"""The steps of a run, one at a time: a batch is taken up, and trained on by a child workflow that is started, watched,
abandoned. Owned by `TrainingRun`.

Promises: a step that was ended from outside is begun anew within the budget, its stages being idempotent; a step that
has ended, in whatever way, holds its run up no longer.
"""

from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import ApplicationError, ChildWorkflowError, TerminatedError
from temporalio.exceptions import TimeoutError as ChildTimeout

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import RunId, step_workflow
    from ...schemas.messages.run import StartStep, StepHeld, StepReport
    from ...schemas.search import attributes
    from ..calls.tasks import end
    from ..ledger import Consumption
    from ..training.step import TrainStep
    from .faults import UNREACHABLE
    from .state import RunState


class Steps:
    def __init__(
        self, run_id: RunId, state: RunState, *, abandoned: Callable[[], bool], wake: Callable[[], None]
    ) -> None:
        """`abandoned`: the step in progress is not waited for; `wake`: new groups may be started again."""
        self._run_id, self._state, self._abandoned, self._wake = run_id, state, abandoned, wake
        self.in_progress = False
        self.trained = False
        """One has ended in this execution of the run."""

    @property
    def ready(self) -> bool:
        """The next one may begin."""
        state = self._state
        complete = bool(state.open_batch) or state.groups.ledger.ready
        return complete and not state.control.resting and not state.over

    def take(self) -> StartStep:
        """The next one: of a batch that was recorded before the run was resumed, or of the groups that are due."""
        state = self._state
        if state.open_batch:
            taken, state.open_batch = state.open_batch, ()
            return self._start(Consumption(state.version, taken))
        depth = state.groups.ledger.occupied_count
        return self._start(state.groups.consume(), depth)

    async def train(self, start: StartStep) -> StepReport | None:
        """`None`: it was abandoned; what it had begun is found again by `resume`. One that failed has failed."""
        self.in_progress = True
        try:
            return await self._train(start)
        finally:
            self.in_progress, self.trained = False, True

    def hold(self, held: StepHeld) -> None:
        """A step needs people's help, or no longer. One that is not trained now, of an earlier execution, has no
        say."""
        if self.in_progress and held.buffer == self._state.version:
            self._state.control.hold(held)
            self._wake()

    def _start(self, batch: Consumption, depth: int = 0) -> StartStep:
        state = self._state
        assert batch.taken is not None
        return StartStep(
            run_id=self._run_id,
            buffer=batch.buffer,
            taken=batch.taken,
            dropped=batch.dropped,
            checkpoint=state.due(batch.buffer + 1, state.config.trainer.save_freq),
            waited_s=workflow.time() - state.idle_since,
            queue_depth=depth or len(batch.taken) + state.groups.ledger.occupied_count,
        )

    async def _train(self, start: StartStep) -> StepReport | None:
        name = step_workflow(self._run_id, start.buffer)
        for restarts in range(self._state.config.psrl.deployment.restart_budget + 1):
            step = await workflow.start_child_workflow(
                TrainStep.run,
                start,
                id=name,
                static_summary=f"step {start.buffer}: {len(start.taken)} groups",
                search_attributes=attributes(self._run_id, step=start.buffer),
            )
            await workflow.wait_condition(lambda step=step: step.done() or self._abandoned())  # type: ignore[misc]
            given_up = not step.done()
            await end(step)
            self._let_go()
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

    def _let_go(self) -> None:
        """One that was held cannot say that it no longer is."""
        self._state.control.held = None
        self._wake()
