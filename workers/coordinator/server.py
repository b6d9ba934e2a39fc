"""The coordinator's gRPC service: reports in, placements out. All state is in `Fleet`; one event loop, no locks."""

import logging
import time
from typing import Any

import grpc
import grpc.aio
from pydantic import ValidationError

from ...activities.routing.identity import OnlyOurs
from ...activities.routing.wire import decode, encode
from ...schemas.errors import UserError
from ...schemas.messages.rollout import DispatchPlanRequest, InstanceReport, RouteRequest
from ...schemas.proto import coordinator_pb2 as pb
from ...schemas.proto.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from .fleet import Fleet
from .waiting import RouteQueue

log = logging.getLogger(__name__)

GRACE_S = 0.5
"""How long calls in progress may take at shutdown; a held route call is simply repeated by its caller."""


class CoordinatorService(CoordinatorServicer):
    """One method per rpc of `coordinator.proto`."""

    def __init__(self, fleet: Fleet, queue: RouteQueue) -> None:
        self._fleet, self._queue = fleet, queue

    async def Report(self, request: pb.InstanceReport, context: Any) -> pb.ReportAck:
        report = await _decoded(request, InstanceReport, context)
        self._fleet.report(report, time.monotonic())
        self._queue.changed(report.run_id)
        return pb.ReportAck()

    async def Route(self, request: pb.RouteRequest, context: Any) -> pb.RouteResult:
        return encode(await self._queue.route(await _decoded(request, RouteRequest, context)), pb.RouteResult)

    async def PlanDispatch(self, request: pb.DispatchPlanRequest, context: Any) -> pb.DispatchPlan:
        plan = self._fleet.plan(await _decoded(request, DispatchPlanRequest, context), time.monotonic())
        return encode(plan, pb.DispatchPlan)

    async def Fleet(self, request: pb.FleetRequest, context: Any) -> pb.FleetSnapshot:
        return encode(self._fleet.snapshot(time.monotonic()), pb.FleetSnapshot)


async def start_server(
    address: str, stack_id: str = "", fleet: Fleet | None = None, queue: RouteQueue | None = None
) -> tuple[Any, int]:
    """A started server and its port (`address` may ask for port 0). With `stack_id` it serves no other stack; `fleet`
    and its `queue` are given by whoever watches them. Raises `UserError` when the port is taken."""
    fleet = fleet or Fleet()
    service = CoordinatorService(fleet, queue or RouteQueue(fleet))
    guards = (OnlyOurs(stack_id),) if stack_id else ()
    server = grpc.aio.server(interceptors=guards, options=[("grpc.so_reuseport", 0)])
    add_CoordinatorServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UserError(f"coordinator cannot listen on {address}: {error}. Is the port taken?") from error
    await server.start()
    log.info("coordinator listens on %s", address)
    return server, int(port)


async def _decoded(request: Any, kind: Any, context: Any) -> Any:
    try:
        return decode(request, kind)
    except ValidationError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
