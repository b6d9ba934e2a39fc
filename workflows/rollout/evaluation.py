"""One validation round: every validation prompt is answered by instances at the round's version or a newer one.

Started by the run, id `RUN/evaluation/000010`; outlives the run's continue-as-new and reports by signal. A prompt whose
answer failed is counted, never scored 0.
"""

import asyncio
from statistics import fmean

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId
    from ...schemas.messages.data import DrawValidationRequest
    from ...schemas.messages.run import EvaluationReport, StartEvaluation
    from ..calls import table as calls
    from ..failure import FAILS
    from .trajectories import Trajectories


@workflow.defn(failure_exception_types=FAILS)
class Evaluation:
    @workflow.run
    async def run(self, start: StartEvaluation) -> EvaluationReport:
        groups = await self._draw(start)
        places = asyncio.Semaphore(start.concurrency)
        scored = await asyncio.gather(*(self._play(start, group, places) for group in groups))
        rewards = [reward for answers in scored for reward in answers]
        report = EvaluationReport(
            run_id=start.run_id,
            version=start.version,
            accuracy=fmean(rewards) if rewards else None,
            scored=len(rewards),
            failed=len(groups) * start.rollout.offered - len(rewards),
        )
        await self._record(report)
        await self._tell_run(start, report)
        return report

    async def _draw(self, start: StartEvaluation) -> tuple[GroupId, ...]:
        drawn = await calls.draw_validation(
            DrawValidationRequest(run_id=start.run_id, version=start.version, trajectories=start.rollout.offered),
            summary=f"validation prompts at v{start.version}",
        )
        return drawn.groups

    async def _play(self, start: StartEvaluation, group: GroupId, places: asyncio.Semaphore) -> list[float]:
        """Rewards of one prompt's answers."""
        async with places:
            answers = Trajectories(start.run_id, group, start.rollout, version_tag=start.version, label=f"{group}-")
            await answers.play()
            return answers.rewards

    async def _record(self, report: EvaluationReport) -> None:
        await calls.record_evaluation(report, summary=f"accuracy at v{report.version}: {report.accuracy}")

    async def _tell_run(self, start: StartEvaluation, report: EvaluationReport) -> None:
        run = workflow.get_external_workflow_handle(start.run_workflow_id)
        try:
            await run.signal("evaluation_report", report)
        except ApplicationError as error:
            workflow.logger.warning("run %s took no report: %s", start.run_workflow_id, error)
