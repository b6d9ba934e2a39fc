"""The routing activities: thin calls to the coordinator, run as local activities of the orchestrator."""

from typing import Protocol

from temporalio import activity

from ...schemas.messages.coordination import SyncAnswer, SyncRequest
from ...schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, RouteRequest, RouteResult
from ..boundary import boundary
from ..heartbeat import heartbeating


class Contexts(Protocol):
    """What the store knows of a request's context: `contexts.Contexts`."""

    async def fill(self, request: RouteRequest) -> RouteRequest: ...


class Coordinator(Protocol):
    """What routing needs of a coordinator: `CoordinatorClient`, or a scripted one in tests."""

    async def route(self, request: RouteRequest) -> RouteResult: ...

    async def plan(self, request: DispatchPlanRequest) -> DispatchPlan: ...

    async def sync_due(self, request: SyncRequest) -> SyncAnswer: ...


class RoutingActivities:
    """Registered by the orchestrator worker. Repeating a call is harmless: what was placed and not used decays."""

    def __init__(self, coordinator: Coordinator, contexts: Contexts | None = None) -> None:
        """Without `contexts`, policies that look at lengths or tokens see none."""
        self._coordinator, self._contexts = coordinator, contexts

    async def place(self, request: RouteRequest) -> RouteResult:
        """For other activities of this process, and for the gateway."""
        filled = await self._contexts.fill(request) if self._contexts is not None else request
        return await self._coordinator.route(filled)

    @activity.defn(name="route")
    @boundary
    async def route(self, request: RouteRequest) -> RouteResult:
        return await self.place(request)

    @activity.defn(name="plan_dispatch")
    @boundary
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        return await self._coordinator.plan(request)

    @activity.defn(name="sync_due")
    @boundary
    async def sync_due(self, request: SyncRequest) -> SyncAnswer:
        """For as long as the caller's patience lasts; the coordinator itself holds each question for a while."""
        async with heartbeating():
            while not (answer := await self._coordinator.sync_due(request)).due:
                activity.heartbeat(answer.reason)
            return answer
