"""One prompt's trajectories: the first N of N' that are finished and scored win, then one report to the run.

Started by the run (`start_groups`), id `RUN/group/000123`. Its history reads as a trace: one generate activity per
instance, another after an interruption, one score activity, one report.
"""

from statistics import fmean

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.messages.rewards import Verdict
    from ...schemas.messages.run import GroupOutcome, GroupReport, StartGroup, TellRun
    from ...schemas.search import REWARD, STATE
    from ..calls import table as calls
    from ..failure import FAILS
    from .trajectories import Trajectories

OUTCOME = {
    Verdict.KEEP: GroupOutcome.COMPLETE,
    Verdict.DROP: GroupOutcome.FILTERED,
    Verdict.FAILED: GroupOutcome.FAILED,
}


@workflow.defn(failure_exception_types=FAILS)
class RolloutGroup:
    @workflow.init
    def __init__(self, start: StartGroup) -> None:
        self._start = start
        self._trajectories = Trajectories(
            start.run_id,
            start.group_id,
            start.rollout,
            version_tag=start.version_tag,
            placements=start.placements,
            changed=self._show,
        )

    @workflow.run
    async def run(self, start: StartGroup) -> GroupReport:
        await self._trajectories.play()
        report = self._report()
        self._show(f"**{report.outcome}**, " + (f"{report.reason}, " if report.reason else ""))
        await self._tell_run(report)
        workflow.upsert_search_attributes(
            [STATE.value_set(report.outcome.value)]
            + ([REWARD.value_set(report.reward_mean)] if report.reward_mean is not None else [])
        )
        return report

    @workflow.query
    def trajectories(self) -> list[str]:
        """One line per trajectory, as the trace shows it."""
        return [trajectory.line() for trajectory in self._trajectories]

    def _report(self) -> GroupReport:
        played, rewards = self._trajectories, self._trajectories.rewards
        outcome, reason = GroupOutcome.COMPLETE, ""
        if not played.complete:
            outcome, reason = GroupOutcome.FAILED, next((f"{t.name}: {t.error}" for t in played if t.error), "")
        elif verdict := played.verdict:
            outcome, reason = OUTCOME[verdict.verdict], verdict.reason
        return GroupReport(
            group_id=self._start.group_id,
            outcome=outcome,
            reward_mean=fmean(rewards) if rewards else None,
            tokens=sum(t.tokens for t in played),
            segments=sum(t.segments for t in played),
            reason=reason[:500],
        )

    def _show(self, head: str = "") -> None:
        """The details of the workflow in the web UI; they cost no event."""
        lines = [f"- {line}" for line in self.trajectories()]
        workflow.set_current_details("\n".join([f"{head}tag v{self._start.version_tag}", "", *lines]))

    async def _tell_run(self, report: GroupReport) -> None:
        """By a local activity: a signal command would cost another workflow task and four events. It may have to wait
        for its turn among many held route calls; a report that does not arrive until then is fetched by the run's
        sweep."""
        try:
            await calls.tell_run(TellRun(run_workflow_id=self._start.run_workflow_id, report=report))
        except FailureError as error:  # of a local activity, also what it raised itself
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("run %s was not told: %s", self._start.run_workflow_id, error.cause or error)
