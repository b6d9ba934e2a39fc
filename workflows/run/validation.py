"""The workflows of validation rounds: started, started anew. Used by `TrainingRun` and its sweep."""

from collections.abc import Iterable

from temporalio import workflow
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import RunId, Version, evaluation_workflow
    from ...schemas.messages.run import EndedEvaluation, RolloutSettings, StartEvaluation
    from ...schemas.search import attributes
    from ..rollout.evaluation import Evaluation
    from .faults import UNREACHABLE
    from .state import RunState

CONCURRENCY = 64
"""Prompts answered at the same time."""


class Validation:
    def __init__(self, run_id: RunId, state: RunState) -> None:
        self._run_id, self._state = run_id, state

    async def begin(self, version: int) -> None:
        self._state.rounds.begin(version)
        await self._start(version)

    async def settle(self, ended: Iterable[EndedEvaluation]) -> None:
        """Start anew what ended without a result; a round that keeps doing so fails the run."""
        for one in ended:
            try:
                again = self._state.rounds.end(one, self._state.config.psrl.deployment.restart_budget)
            except LookupError as error:
                raise ApplicationError(str(error), type=UNREACHABLE, non_retryable=True) from error
            if again:
                workflow.logger.warning("restarting the validation of version %s: %s", one.version, one.reason)
                await self._start(one.version)

    async def _start(self, version: int) -> None:
        config = self._state.config
        start = StartEvaluation(
            run_id=self._run_id,
            run_workflow_id=workflow.info().workflow_id,
            version=version,
            concurrency=CONCURRENCY,
            rollout=RolloutSettings.of_validation(config),
        )
        try:
            await workflow.start_child_workflow(
                Evaluation.run,
                start,
                id=evaluation_workflow(self._run_id, Version(version)),
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"validation at v{version}",
                search_attributes=attributes(self._run_id, step=version),
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.warning("validation of version %s lives after all", version)
