"""The run of a measurement: starts group workflows in waves as `TrainingRun` does, and trains nothing."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from psrl.activities import signatures
    from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId
    from psrl.schemas.messages.base import Message
    from psrl.schemas.messages.run import GroupReport, GroupReports, InstanceChanged, StartGroup, StartGroups
    from psrl.workflows.calls import settings


class Work(Message):
    template: StartGroup
    groups: tuple[GroupId, ...]
    wave: int
    """Groups started by one activity call."""
    in_flight: int
    """Groups that run at the same time, at most."""


@workflow.defn
class MeasuredRun:
    """Lives until it is terminated; each update is one piece of work."""

    def __init__(self) -> None:
        self._reports: dict[GroupId, GroupReport] = {}

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def instance_changed(self, changed: InstanceChanged) -> None:
        """Who wants to know asks the coordinator."""

    @workflow.signal
    def group_reports(self, told: GroupReports) -> None:
        self._reports.update({report.group_id: report for report in told.reports})

    @workflow.update
    async def play(self, work: Work) -> list[GroupReport]:
        """Returns when every group has reported."""
        for first in range(0, len(work.groups), work.wave):
            wave = work.groups[first : first + work.wave]
            before, limit = work.groups[:first], max(0, work.in_flight - len(wave))
            await workflow.wait_condition(lambda: sum(g not in self._reports for g in before) <= limit)  # noqa: B023
            await workflow.execute_activity(
                signatures.start_groups,
                StartGroups(template=work.template, groups=wave),
                task_queue=ORCHESTRATOR_QUEUE,
                start_to_close_timeout=settings.LEASE,
                retry_policy=settings.QUICK,
            )
        await workflow.wait_condition(lambda: all(group in self._reports for group in work.groups))
        return [self._reports[group] for group in work.groups]
