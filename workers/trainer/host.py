"""The trainer's activities on `TRAINER_QUEUE`.

All of torch runs in one thread of its own: stages never overlap, the event loop stays free, and heartbeats flow while
a stage works. A cancelled activity stops waiting; the stage it started still ends and is remembered, so that the
next attempt finds its result.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from temporalio import activity

from ...activities.boundary import boundary
from ...activities.heartbeat import heartbeating
from ...schemas.messages.training import (
    AdvantageStats,
    CheckpointRequest,
    CheckpointResult,
    LogProbStats,
    OpenTrainerRequest,
    PublishResult,
    StepRequest,
    UpdateStats,
)
from .stages import Stages

Result = TypeVar("Result")


class TrainerHost:
    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")

    @property
    def activities(self) -> Sequence[Callable[..., Any]]:
        return [
            self.open_trainer,
            self.compute_log_probs,
            self.compute_advantages,
            self.update,
            self.publish,
            self.checkpoint,
            self.close_trainer,
        ]

    def shutdown(self) -> None:
        """Waits for the stage and the checkpoint in progress; queued stages are dropped."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._stages.shutdown()

    @activity.defn
    @boundary
    async def open_trainer(self, request: OpenTrainerRequest) -> PublishResult:
        return await self._in_thread(lambda: self._stages.open(request.run_id))

    @activity.defn
    @boundary
    async def compute_log_probs(self, request: StepRequest) -> LogProbStats:
        return await self._in_thread(lambda: self._stages.log_probs(request.run_id, request.buffer))

    @activity.defn
    @boundary
    async def compute_advantages(self, request: StepRequest) -> AdvantageStats:
        return await self._in_thread(lambda: self._stages.advantages(request.run_id, request.buffer))

    @activity.defn
    @boundary
    async def update(self, request: StepRequest) -> UpdateStats:
        return await self._in_thread(lambda: self._stages.update(request.run_id, request.buffer))

    @activity.defn
    @boundary
    async def publish(self, request: StepRequest) -> PublishResult:
        return await self._in_thread(lambda: self._stages.publish(request.run_id, request.buffer))

    @activity.defn
    @boundary
    async def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        return await self._in_thread(lambda: self._stages.checkpoint(request.run_id, request.buffer, request.wait))

    @activity.defn
    @boundary
    async def close_trainer(self, request: OpenTrainerRequest) -> None:
        await self._in_thread(lambda: self._stages.close(request.run_id))

    async def _in_thread(self, stage: Callable[[], Result]) -> Result:
        async with heartbeating():
            return await asyncio.get_running_loop().run_in_executor(self._thread, stage)
