"""The client of the coordinator: used by the routing activities, the rollout hosts and the CLI.

Promises: every call ends within its deadline; a coordinator that does not answer is `Unreachable` (retryable), whatever
gRPC calls it. The coordinator's state is soft, so a caller never has to undo anything.
"""

import time
from types import TracebackType
from typing import Any, Self, cast

import grpc
import grpc.aio

from ...schemas.errors import FatalError, Unreachable, another_stacks
from ...schemas.messages.fleet import FleetSnapshot
from ...schemas.messages.rollout import (
    DispatchPlan,
    DispatchPlanRequest,
    InstanceReport,
    RouteRequest,
    RouteResult,
)
from ...schemas.proto import coordinator_pb2 as pb
from ...schemas.proto.coordinator_pb2_grpc import CoordinatorStub
from ...schemas.silence import why_silent
from .identity import REFUSED, STACK_KEY
from .wire import decode, encode

CALL_TIMEOUT_S = 5.0
"""Deadline of a call, on top of the time it may be held on purpose."""

_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # gRPC's own default waits up to two minutes for a restarted server
    ("grpc.enable_http_proxy", 0),
]


class CoordinatorClient:
    """One channel to one coordinator; belongs to the event loop of its first call. With `stack_id`, each call says
    whose it is, and the coordinator of another stack refuses it (L14)."""

    def __init__(self, address: str, stack_id: str = "") -> None:
        self.address = address
        self._stack_id = stack_id
        self._channel: Any = None
        self._stub: Any = None

    async def report(self, report: InstanceReport) -> None:
        await self._call("Report", encode(report, pb.InstanceReport), CALL_TIMEOUT_S)

    async def route(self, request: RouteRequest) -> RouteResult:
        timeout = request.wait_s + CALL_TIMEOUT_S
        return decode(await self._call("Route", encode(request, pb.RouteRequest), timeout), RouteResult)

    async def plan(self, request: DispatchPlanRequest) -> DispatchPlan:
        wire = encode(request, pb.DispatchPlanRequest)
        return decode(await self._call("PlanDispatch", wire, CALL_TIMEOUT_S), DispatchPlan)

    async def fleet(self) -> FleetSnapshot:
        return decode(await self._call("Fleet", pb.FleetRequest(), CALL_TIMEOUT_S), FleetSnapshot)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = self._stub = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        if self._stub is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
            self._stub = cast(Any, CoordinatorStub)(self._channel)
        began = time.monotonic()
        try:
            whose = ((STACK_KEY, self._stack_id),) if self._stack_id else None
            return await getattr(self._stub, method)(request, timeout=timeout_s, metadata=whose)
        except grpc.aio.AioRpcError as error:
            if error.code() is REFUSED:
                raise another_stacks("coordinator", self.address, str(error.details()), self._stack_id) from error
            if error.code() in _GONE:
                tried = f"{method} for {time.monotonic() - began:.1f} s"
                why = why_silent(error.details())
                raise Unreachable(f"coordinator at {self.address} did not answer {tried}: {why}") from error
            said = f"{error.code().name}: {error.details()}"
            raise FatalError(f"coordinator at {self.address} refused {method} ({said})") from error
