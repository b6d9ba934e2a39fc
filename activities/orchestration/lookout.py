"""What has become of the workflows that a run waits on, and of the run that an instance serves. Called by the run's
sweep and by instances; reads only.

A workflow that ended in whatever way is told with what it found or why it ended. One that runs is not mentioned.
"""

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.ids import GroupId, InstanceId, RunId, Version, evaluation_workflow, group_workflow, instance_workflow
from ...schemas.messages.run import (
    CollectedReports,
    CollectReports,
    EndedEvaluation,
    EndedInstance,
    EvaluationReport,
    GroupOutcome,
    GroupReport,
    LookAtRun,
    LookedAtRun,
)
from ..boundary import boundary
from ..heartbeat import heartbeating

LIVING = frozenset({WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW})
Result = TypeVar("Result")
Found = TypeVar("Found")


class LookoutActivities:
    def __init__(self, client: Client) -> None:
        self._client = client

    @activity.defn(name="collect_reports")
    @boundary
    async def collect_reports(self, request: CollectReports) -> CollectedReports:
        run = request.run_id
        async with heartbeating():
            groups, instances, evaluations = await asyncio.gather(
                asyncio.gather(*(self._group(run, group) for group in request.groups)),
                asyncio.gather(*(self._instance(run, instance) for instance in request.instances)),
                asyncio.gather(*(self._evaluation(run, Version(version)) for version in request.evaluations)),
            )
        return CollectedReports(
            reports=_present(groups), instances=_present(instances), evaluations=_present(evaluations)
        )

    @activity.defn(name="look_at_run")
    @boundary
    async def look_at_run(self, request: LookAtRun) -> LookedAtRun:
        """One that its server does not know is over, too."""
        try:
            found = await self._client.get_workflow_handle(request.run_workflow_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return LookedAtRun(open=False)
        return LookedAtRun(open=found.status in LIVING)

    async def _group(self, run: RunId, group: GroupId) -> GroupReport | None:
        ended = await self._end_of(group_workflow(run, group), GroupReport)
        if ended is None:
            return None
        report, reason = ended
        return report or GroupReport(group_id=group, outcome=GroupOutcome.FAILED, reason=reason)

    async def _instance(self, run: RunId, instance: InstanceId) -> EndedInstance | None:
        ended = await self._end_of(instance_workflow(run, instance), str)
        if ended is None:
            return None
        state, reason = ended
        return EndedInstance(instance=instance, stopped=state is not None, reason=reason)

    async def _evaluation(self, run: RunId, version: Version) -> EndedEvaluation | None:
        ended = await self._end_of(evaluation_workflow(run, version), EvaluationReport)
        if ended is None:
            return None
        report, reason = ended
        return EndedEvaluation(version=version, report=report, reason=reason)

    async def _end_of(self, workflow_id: str, result: type[Result]) -> tuple[Result | None, str] | None:
        """`None` while it runs, else its result or why it has none."""
        handle = self._client.get_workflow_handle(workflow_id, result_type=result)
        try:
            status = (await handle.describe()).status
            if status in LIVING:
                return None
            found: Result = await handle.result(follow_runs=False)
            return found, ""
        except WorkflowFailureError as error:
            reason = f"its workflow ended as {status.name if status else 'unknown'}: {error.cause}"
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            reason = "its workflow is not known to the server"
        return None, reason[:500]


def _present(found: Iterable[Found | None]) -> tuple[Found, ...]:
    return tuple(one for one in found if one is not None)
