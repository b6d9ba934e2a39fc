"""One validation round: every validation prompt is answered by instances at the round's version or a newer one.

Started by the run, id `RUN/evaluation/000010`; outlives the run's continue-as-new and reports by signal. A prompt whose
answer failed is counted, never scored 0.
"""

import asyncio
from datetime import timedelta
from statistics import fmean

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId
    from ...schemas.messages.data import DrawValidationRequest
    from ...schemas.messages.run import EvaluationReport, StartEvaluation
    from ..calls import table as calls
    from ..failure import FAILS
    from .episodes import Episodes


@workflow.defn(failure_exception_types=FAILS)
class Evaluation:
    @workflow.run
    async def run(self, start: StartEvaluation) -> EvaluationReport:
        groups = await self._draw(start)
        places = asyncio.Semaphore(start.concurrency)
        played = await asyncio.gather(*(self._play(start, group, places) for group in groups))
        rewards = [t.reward for episodes in played for t in episodes.scored if t.reward is not None]
        report = EvaluationReport(
            run_id=start.run_id,
            version=start.version,
            accuracy=fmean(rewards) if rewards else None,
            scored=len(rewards),
            failed=len(groups) * start.samples - len(rewards),
        )
        await self._record(report)
        await self._tell_run(start, report)
        return report

    async def _draw(self, start: StartEvaluation) -> tuple[GroupId, ...]:
        drawn = await calls.draw_validation(
            DrawValidationRequest(run_id=start.run_id, version=start.version, trajectories=start.samples),
            summary=f"validation prompts at v{start.version}",
        )
        return drawn.groups

    async def _play(self, start: StartEvaluation, group: GroupId, places: asyncio.Semaphore) -> Episodes:
        async with places:
            episodes = Episodes(
                start.run_id,
                group,
                version_tag=start.version,
                offered=start.samples,
                needed=start.samples,
                sampling=start.sampling,
                seed=start.seed,
                limit=timedelta(seconds=start.timeout_s),
                reward_timeout=timedelta(seconds=start.reward_timeout_s),
                coalesce=True,
                routing=start.routing,
                label=f"{group}-",
            )
            await episodes.play()
            return episodes

    async def _record(self, report: EvaluationReport) -> None:
        await calls.record_evaluation(report, summary=f"accuracy at v{report.version}: {report.accuracy}")

    async def _tell_run(self, start: StartEvaluation, report: EvaluationReport) -> None:
        run = workflow.get_external_workflow_handle(start.run_workflow_id)
        try:
            await run.signal("evaluation_report", report)
        except ApplicationError as error:
            workflow.logger.warning("run %s took no report: %s", start.run_workflow_id, error)
