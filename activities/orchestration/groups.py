"""Start and cancel `RolloutGroup` workflows for a run, and hand their reports to it. Every call is idempotent.

Starting through the client costs the run three events per wave instead of three per group, and a group survives the
run's continue-as-new without being anybody's child. A group is told where to begin: asking for it in its workflow would
cost an event and the time of a task.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.config.agentic import AgentLoop
from ...schemas.errors import Unreachable
from ...schemas.ids import ORCHESTRATOR_QUEUE, GroupId, RunId, group_workflow
from ...schemas.messages.rollout import RouteRequest, RouteResult
from ...schemas.messages.run import (
    CancelGroups,
    GroupReport,
    StartGroup,
    StartGroups,
    TellRun,
)
from ...schemas.search import attributes
from ..boundary import boundary
from ..heartbeat import heartbeating
from .reports import Reports

Place = Callable[[RouteRequest], Awaitable[RouteResult]]
"""Asks the coordinator. Repeating it is harmless: what was placed and not used decays."""
MarkGroups = Callable[[RunId, Sequence[GroupId], str], Awaitable[None]]
"""Marks the rows of given-up groups with the reason."""


class GroupActivities:
    def __init__(self, client: Client, mark: MarkGroups, place: Place) -> None:
        self._client, self._mark, self._place = client, mark, place
        self._reports = Reports(client)

    @activity.defn(name="start_groups")
    @boundary
    async def start_groups(self, request: StartGroups) -> None:
        async with heartbeating():
            starts = (self._start(request.template, group) for group in request.groups)
            # Over only when all of them are, also when one has failed or the whole wave is cancelled.
            for ended in await asyncio.gather(*starts, return_exceptions=True):
                if ended is not None:
                    raise ended

    @activity.defn(name="cancel_groups")
    @boundary
    async def cancel_groups(self, request: CancelGroups) -> None:
        async with heartbeating():
            await asyncio.gather(*(self._cancel(request.run_id, group) for group in request.groups))
            await self._mark(request.run_id, request.groups, request.reason)

    @activity.defn(name="tell_run")
    @boundary
    async def tell_run(self, request: TellRun) -> None:
        await self._reports.tell(request.run_workflow_id, request.report)

    async def _start(self, template: StartGroup, group: GroupId) -> None:
        start = await self._placed(template.model_copy(update={"group_id": group}))
        # What the server may have heard is waited for: who cancelled us cancels the groups that exist then.
        await _to_its_end(self._begin(start))

    async def _begin(self, start: StartGroup) -> None:
        rollout = start.rollout
        try:
            await self._client.start_workflow(
                "RolloutGroup",
                start,
                id=group_workflow(start.run_id, start.group_id),
                task_queue=ORCHESTRATOR_QUEUE,
                result_type=GroupReport,
                # A repeated call finds the group running, or already finished: both are fine.
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                search_attributes=attributes(start.run_id, group=start.group_id, version=start.version_tag),
                # This process also hosts the workflows: it begins with the group without a way through the queue.
                request_eager_start=True,
                static_summary=f"{rollout.needed} of {rollout.offered} trajectories, tag v{start.version_tag}",
            )
        except WorkflowAlreadyStartedError:
            activity.logger.info("group %s was started before", start.group_id)

    async def _placed(self, start: StartGroup) -> StartGroup:
        """With placements, as far as there is room now. An agent's turns begin when it asks for them."""
        if start.rollout.agent_loop is AgentLoop.SESSION:
            return start
        request = RouteRequest(
            run_id=start.run_id,
            group_id=start.group_id,
            indices=tuple(range(start.rollout.offered)),
            version_tag=start.version_tag,
            wait_s=0,
            strategy=start.rollout.strategy,
        )
        try:
            placements = (await self._place(request)).placements
        except Unreachable as error:
            activity.logger.warning("group %s is to route its trajectories itself: %s", start.group_id, error)
            return start
        return start.model_copy(update={"placements": placements})

    async def _cancel(self, run: RunId, group: GroupId) -> None:
        try:
            await self._client.get_workflow_handle(group_workflow(run, group)).cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


async def _to_its_end(call: Coroutine[Any, Any, None]) -> None:
    """Also when we are cancelled meanwhile."""
    task = asyncio.create_task(call)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
