"""One validation round: every validation prompt is answered by instances at the round's version or a newer one.

Started by the run, id `RUN/evaluation/000010`; outlives the run's continue-as-new and reports by signal. A prompt whose
answer failed is counted, never scored 0. However many prompts there are: when the history is long, no further one is
begun, and the rest is left to the next execution.
"""

import asyncio
from collections.abc import Sequence
from math import fsum

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId
    from ...schemas.messages.data import DrawValidationRequest
    from ...schemas.messages.run import Answered, EvaluationReport, StartEvaluation
    from ..calls import table as calls
    from ..failure import FAILS
    from .trajectories import Trajectories


@workflow.defn(failure_exception_types=FAILS)
class Evaluation:
    @workflow.run
    async def run(self, start: StartEvaluation) -> EvaluationReport:
        before = start.answered or await self._draw(start)
        slots = asyncio.Semaphore(start.concurrency)
        played = await asyncio.gather(*(self._play(start, group, slots) for group in before.left))
        answered = self._add(start, before, played)
        if answered.left:
            workflow.continue_as_new(start.model_copy(update={"answered": answered}))
        report = EvaluationReport(
            run_id=start.run_id,
            version=start.version,
            accuracy=answered.reward_sum / answered.scored if answered.scored else None,
            scored=answered.scored,
            failed=answered.failed,
        )
        await self._record(report)
        await self._tell_run(start, report)
        return report

    async def _draw(self, start: StartEvaluation) -> Answered:
        drawn = await calls.draw_validation(
            DrawValidationRequest(run_id=start.run_id, version=start.version, trajectories=start.rollout.offered),
            summary=f"validation prompts at v{start.version}",
        )
        return Answered(left=drawn.groups, scored=0, failed=0, reward_sum=0.0)

    async def _play(self, start: StartEvaluation, group: GroupId, slots: asyncio.Semaphore) -> list[float] | None:
        """Rewards of one prompt's answers. `None`: it was not begun."""
        async with slots:
            if workflow.info().is_continue_as_new_suggested():
                return None
            answers = Trajectories(start.run_id, group, start.rollout, version_tag=start.version, label=f"{group}-")
            await answers.play()
            return answers.rewards

    @staticmethod
    def _add(start: StartEvaluation, before: Answered, played: Sequence[list[float] | None]) -> Answered:
        left = tuple(group for group, rewards in zip(before.left, played, strict=True) if rewards is None)
        rewards = [reward for answers in played if answers is not None for reward in answers]
        offered = (len(before.left) - len(left)) * start.rollout.offered
        return Answered(
            left=left,
            scored=before.scored + len(rewards),
            failed=before.failed + offered - len(rewards),
            reward_sum=fsum([before.reward_sum, *rewards]),
        )

    async def _record(self, report: EvaluationReport) -> None:
        await calls.record_evaluation(report, summary=f"accuracy at v{report.version}: {report.accuracy}")

    async def _tell_run(self, start: StartEvaluation, report: EvaluationReport) -> None:
        run = workflow.get_external_workflow_handle(start.run_workflow_id)
        try:
            await run.signal("evaluation_report", report)
        except ApplicationError as error:
            workflow.logger.warning("run %s took no report: %s", start.run_workflow_id, error)
