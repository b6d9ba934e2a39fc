"""The coordinator's gRPC service: reports in, commands and placements out. All state is soft and in memory; one event
loop, no locks."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from pydantic import ValidationError

from ...activities.routing.identity import OnlyOurs
from ...activities.routing.wire import decode, encode
from ...schemas.errors import UserError
from ...schemas.messages.coordination import HostCommand, HostCommandKind, SyncRequest
from ...schemas.messages.rollout import DispatchPlanRequest, InstanceReport, RouteRequest
from ...schemas.proto import coordinator_pb2 as pb
from ...schemas.proto.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from .attached import Attached, Outbox
from .fleet import Fleet
from .migrations import Migrations
from .syncs import Syncs
from .view import View
from .waiting import RouteQueue

log = logging.getLogger(__name__)

GRACE_S = 0.5
"""How long calls in progress may take at shutdown; a held route call is simply repeated by its caller."""


SIGN_OF_LIFE_S = 1.0
"""Between two messages to an attached host, at most."""


class CoordinatorService(CoordinatorServicer):
    """One method per rpc of `coordinator.proto`."""

    def __init__(self, fleet: Fleet, queue: RouteQueue) -> None:
        self._fleet, self._queue = fleet, queue
        self._view = View(self._fleet, self._queue)
        self._attached = Attached()
        self._syncs = Syncs(self._view)
        self._migrations = Migrations(self._view, self._attached.send)

    async def Attach(self, reports: Any, context: Any) -> AsyncIterator[pb.HostCommand]:
        outbox: Outbox = asyncio.Queue()
        hearing = asyncio.create_task(self._hear(reports, outbox))
        hearing.add_done_callback(lambda _: outbox.put_nowait(None))
        try:
            while (command := await _next(outbox)) is not None:
                yield encode(command, pb.HostCommand)
            await hearing
        except ValidationError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._attached.leave(outbox)
            hearing.cancel()

    async def Route(self, request: pb.RouteRequest, context: Any) -> pb.RouteResult:
        asked = self._migrations.steer(await _decoded(request, RouteRequest, context))
        route = asyncio.ensure_future(self._queue.route(asked))
        await asyncio.sleep(0)  # it stands in the queue before anybody looks
        self._syncs.changed()
        result = await route
        self._migrations.placed(asked, result)
        return encode(result, pb.RouteResult)

    async def PlanDispatch(self, request: pb.DispatchPlanRequest, context: Any) -> pb.DispatchPlan:
        asked = await _decoded(request, DispatchPlanRequest, context)
        self._view.hear(asked, time.monotonic())
        self._syncs.changed()
        return encode(self._fleet.plan(asked, time.monotonic()), pb.DispatchPlan)

    async def AwaitSync(self, request: pb.SyncRequest, context: Any) -> pb.SyncAnswer:
        return encode(await self._syncs.due(await _decoded(request, SyncRequest, context)), pb.SyncAnswer)

    async def Fleet(self, request: pb.FleetRequest, context: Any) -> pb.FleetSnapshot:
        return encode(self._fleet.snapshot(time.monotonic()), pb.FleetSnapshot)

    async def _hear(self, reports: Any, outbox: Outbox) -> None:
        """Until the host closes its side."""
        async for wire in reports:
            report = decode(wire, InstanceReport)
            self._attached.take(report.instance, outbox)
            self._fleet.report(report, time.monotonic())
            self._queue.changed(report.run_id)
            self._syncs.changed()
            self._migrations.look(report, time.monotonic())


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


async def _next(outbox: Outbox) -> HostCommand | None:
    try:
        return await asyncio.wait_for(outbox.get(), SIGN_OF_LIFE_S)
    except TimeoutError:
        return HostCommand(kind=HostCommandKind.NOTHING)


async def _decoded(request: Any, kind: Any, context: Any) -> Any:
    try:
        return decode(request, kind)
    except ValidationError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
