"""The client of the coordinator: used by the routing activities, the rollout hosts and the CLI.

Promises: every call ends within its deadline; a coordinator that does not answer is `Unreachable` (retryable), whatever
gRPC calls it. The coordinator's state is soft, so a caller never has to undo anything.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

import grpc
import grpc.aio

from ...schemas.errors import FatalError, PsrlError, Unreachable, another_stacks
from ...schemas.messages.coordination import HostCommand, HostCommandKind, SyncAnswer, SyncRequest
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

SILENCE_S = 5.0
"""A stream has no deadline: a coordinator that hangs, or whose machine is cut off, is known by its silence."""

_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),  # how long a connection may take to open; one refused fails at once
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

    async def attach(self, reports: AsyncIterator[InstanceReport]) -> AsyncIterator[HostCommand]:
        """Tell how an instance is, for as long as there is something to tell, and be told what to do with it. Ends with
        the reports; raises `Unreachable` when the coordinator goes away."""

        began, call = time.monotonic(), self._connected.Attach(metadata=self._whose)
        telling = asyncio.create_task(_tell(call, reports))
        try:
            while (wire := await asyncio.wait_for(call.read(), SILENCE_S)) is not grpc.aio.EOF:
                command = decode(wire, HostCommand)
                if command.kind is not HostCommandKind.NOTHING:
                    yield command
            await telling
        except TimeoutError as error:
            raise Unreachable(f"coordinator at {self.address} gave no sign of life for {SILENCE_S:.0f} s") from error
        except grpc.aio.AioRpcError as error:
            raise self._told(error, "Attach", began) from error
        finally:
            telling.cancel()
            call.cancel()

    async def sync_due(self, request: SyncRequest) -> SyncAnswer:
        timeout = request.wait_s + CALL_TIMEOUT_S
        return decode(await self._call("AwaitSync", encode(request, pb.SyncRequest), timeout), SyncAnswer)

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

    @property
    def _connected(self) -> Any:
        if self._stub is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
            self._stub = cast(Any, CoordinatorStub)(self._channel)
        return self._stub

    @property
    def _whose(self) -> tuple[tuple[str, str], ...] | None:
        return ((STACK_KEY, self._stack_id),) if self._stack_id else None

    async def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        began = time.monotonic()
        try:
            return await getattr(self._connected, method)(request, timeout=timeout_s, metadata=self._whose)
        except grpc.aio.AioRpcError as error:
            raise self._told(error, method, began) from error

    def _told(self, error: grpc.aio.AioRpcError, method: str, began: float) -> PsrlError:
        if error.code() is REFUSED:
            return another_stacks("coordinator", self.address, str(error.details()), self._stack_id)
        if error.code() in _GONE:
            tried = f"{method} for {time.monotonic() - began:.1f} s"
            why = why_silent(error.details())
            return Unreachable(f"coordinator at {self.address} did not answer {tried}: {why}")
        said = f"{error.code().name}: {error.details()}"
        return FatalError(f"coordinator at {self.address} refused {method} ({said})")


async def _tell(call: Any, reports: AsyncIterator[InstanceReport]) -> None:
    """A stream that breaks meanwhile is noticed by who reads it."""
    try:
        async for report in reports:
            await call.write(encode(report, pb.InstanceReport))
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return
    finally:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.done_writing()
