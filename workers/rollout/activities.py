"""The activities of one rollout host, on its own task queue. Each heartbeats while it works, so that a dead host is
noticed within seconds and a cancellation arrives."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity

from ...activities.boundary import boundary
from ...activities.heartbeat import heartbeating
from ...schemas.errors import EngineUnavailable
from ...schemas.ids import Version
from ...schemas.messages.rollout import (
    EngineSpec,
    GenerateRequest,
    GenerateResult,
    Held,
    HoldRequest,
    InstanceCommand,
    PauseRequest,
    PullRequest,
    PullResult,
)
from .calls import Call, Calls
from .host import Host

HOLD_INTERVAL_S = 1.0
HOLD_MARGIN_S = 3.0
"""A lease is given back in good order so long before Temporal would end it, and taken anew by the workflow."""
BEAT_INTERVAL_S = 3.0
"""Of generate: well below its heartbeat timeout, and longer than many calls take, which then cost no heartbeat. One
costs the server a sixth of what a whole turn does."""


class RolloutActivities:
    def __init__(self, host: Host, calls: Calls, stopping: asyncio.Event) -> None:
        self._host = host
        self._calls = calls
        self._stopping = stopping

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        return [
            self.start_engine,
            self.hold_engine,
            self.generate,
            self.pause,
            self.pull_weights,
            self.resume,
            self.release_engine,
        ]

    @activity.defn(name="start_engine")
    @boundary
    async def start_engine(self, request: EngineSpec) -> None:
        async with heartbeating():
            await self._host.start(request)

    @activity.defn(name="hold_engine")
    @boundary
    async def hold_engine(self, request: HoldRequest) -> Held:
        until = time.monotonic() + _time_left_s() - HOLD_MARGIN_S
        while time.monotonic() < until and not (request.until_tokens and self._host.counts.tokens):
            if self._stopping.is_set():
                raise EngineUnavailable(f"{self._host.instance}: the host is stopping")
            self._host.renew_lease(request.run_id)
            activity.heartbeat()
            await asyncio.sleep(HOLD_INTERVAL_S)
        return Held(tokens=self._host.counts.tokens)

    @activity.defn(name="generate")
    @boundary
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        call = self._calls.open(request, activity.info().attempt)
        async with _beating(call):
            return await call.result()

    @activity.defn(name="pause")
    @boundary
    async def pause(self, request: PauseRequest) -> None:
        async with heartbeating():
            await self._host.pause(request.run_id, request.interrupt)

    @activity.defn(name="pull_weights")
    @boundary
    async def pull_weights(self, request: PullRequest) -> PullResult:
        async with heartbeating():
            return await self._host.pull(request.run_id, Version(request.version))

    @activity.defn(name="resume")
    @boundary
    async def resume(self, request: InstanceCommand) -> None:
        async with heartbeating():
            await self._host.resume(request.run_id)

    @activity.defn(name="release_engine")
    @boundary
    async def release_engine(self, request: InstanceCommand) -> None:
        async with heartbeating():
            await self._host.release(request.run_id)


def _time_left_s() -> float:
    """From the activity's start until Temporal gives it up; without end when it never does."""
    info = activity.info()
    if info.schedule_to_close_timeout is None:
        return math.inf
    # Both times are the server's: this machine's clock may say anything.
    spent = info.started_time - info.scheduled_time
    return (info.schedule_to_close_timeout - spent).total_seconds()


@asynccontextmanager
async def _beating(call: Call) -> AsyncIterator[None]:
    """One heartbeat for all turns, carrying the number of their stored tokens."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S)
            activity.heartbeat(call.stored)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
