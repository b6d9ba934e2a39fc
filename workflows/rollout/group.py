"""One prompt's trajectories: the first N of N' that are finished and scored win, then one report to the run.

Started by the run (`start_groups`), id `RUN/group/000123`. Its history reads as a trace: one generate activity per
segment, one score activity, one report.
"""

from datetime import timedelta
from statistics import fmean

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.messages.rewards import Verdict
    from ...schemas.messages.run import GroupOutcome, GroupReport, StartGroup, TellRun
    from ..calls import table as calls
    from ..failure import FAILS
    from ..search import REWARD, STATE
    from .episodes import Episodes
    from .trajectory import Trajectory

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
        self._episodes = Episodes(
            start.run_id,
            start.group_id,
            version_tag=start.version_tag,
            offered=start.offered,
            needed=start.needed,
            sampling=start.sampling,
            seed=start.seed,
            limit=timedelta(seconds=start.timeout_s),
            reward_timeout=timedelta(seconds=start.reward_timeout_s),
            coalesce=start.coalesce_rewards or start.reward_per_group,
            routing=start.routing,
            one_version=start.one_version,
        )

    @workflow.run
    async def run(self, start: StartGroup) -> GroupReport:
        await self._episodes.play()
        report = self._judge()
        workflow.set_current_details(self._trace(report))
        await self._tell_run(report)
        workflow.upsert_search_attributes(
            [STATE.value_set(report.outcome.value)]
            + ([REWARD.value_set(report.reward_mean)] if report.reward_mean is not None else [])
        )
        return report

    @workflow.query
    def trajectories(self) -> list[str]:
        """One line per trajectory, as the trace shows it."""
        return [trajectory.line() for trajectory in self._episodes.trajectories]

    def _judge(self) -> GroupReport:
        scored = self._episodes.scored
        rewards = [t.reward for t in scored if t.reward is not None]
        outcome, reason = GroupOutcome.COMPLETE, ""
        if not self._episodes.complete:
            outcome = GroupOutcome.FAILED
            reason = next((f"{t.name}: {t.error}" for t in self._episodes.trajectories if t.error), "")
        elif verdict := self._episodes.verdict:
            outcome, reason = OUTCOME[verdict.verdict], verdict.reason
        return GroupReport(
            group_id=self._start.group_id,
            outcome=outcome,
            reward_mean=fmean(rewards) if rewards else None,
            tokens=sum(t.tokens for t in self._episodes.trajectories),
            segments=sum(t.segments for t in self._episodes.trajectories),
            reason=reason[:500],
        )

    async def _tell_run(self, report: GroupReport) -> None:
        """By a local activity: a signal command would cost another workflow task and four events. It may have to wait
        for a place among many held route calls; a report that does not arrive until then is fetched by the run's
        sweep."""
        try:
            await calls.tell_run(TellRun(run_workflow_id=self._start.run_workflow_id, report=report))
        except FailureError as error:  # of a local activity, also what it raised itself
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("run %s was not told: %s", self._start.run_workflow_id, error.cause or error)

    def _trace(self, report: GroupReport) -> str:
        lines = [_markdown(trajectory) for trajectory in self._episodes.trajectories]
        head = f"**{report.outcome}**, tag v{self._start.version_tag}" + (f": {report.reason}" if report.reason else "")
        return "\n".join([head, "", *lines])


def _markdown(trajectory: Trajectory) -> str:
    return f"- {trajectory.line()}"
