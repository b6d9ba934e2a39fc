"""The routing activities: thin calls to the coordinator, run as local activities of the orchestrator."""

from typing import Protocol

from temporalio import activity

from ...schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, RouteRequest, RouteResult
from ..boundary import boundary


class Coordinator(Protocol):
    """What routing needs of a coordinator: `CoordinatorClient`, or a scripted one in tests."""

    async def route(self, request: RouteRequest) -> RouteResult: ...

    async def plan(self, request: DispatchPlanRequest) -> DispatchPlan: ...


class RoutingActivities:
    """Registered by the orchestrator worker. Repeating a call is harmless: what was placed and not used decays."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def place(self, request: RouteRequest) -> RouteResult:
        """For other activities of this process."""
        return await self._coordinator.route(request)

    @activity.defn(name="route")
    @boundary
    async def route(self, request: RouteRequest) -> RouteResult:
        return await self.place(request)

    @activity.defn(name="plan_dispatch")
    @boundary
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        return await self._coordinator.plan(request)
