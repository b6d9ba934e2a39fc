"""Consume: buffer `b` becomes version `b + 1`.

A DAG of idempotent activities; any of them may be repeated, and a trainer that was restarted rebuilds what a stage
needs. The version is visible to engines only after its row exists (L9).
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ..activities import signatures
    from ..schemas.ids import TRAINER_QUEUE
    from ..schemas.messages.run import StartStep, StepReport
    from ..schemas.messages.training import BatchRequest, CheckpointResult, StepRequest
    from . import settings

Result = TypeVar("Result")


@workflow.defn
class TrainStep:
    @workflow.run
    async def run(self, start: StartStep) -> StepReport:
        buffer, request = start.buffer, StepRequest(run_id=start.run_id, buffer=start.buffer)
        batch = await workflow.execute_activity(
            signatures.make_batch,
            BatchRequest(run_id=start.run_id, buffer=buffer, taken=start.taken, dropped=start.dropped),
            activity_id=f"batch-{buffer:06d}",
            summary=f"batch {buffer}: {len(start.taken)} groups",
            start_to_close_timeout=timedelta(minutes=5),
            schedule_to_close_timeout=settings.STORE_PATIENCE,
            heartbeat_timeout=settings.HEARTBEAT,
            retry_policy=settings.QUICK,
        )
        began = workflow.now()
        log_probs, advantages = await asyncio.gather(
            self._stage(signatures.compute_log_probs, request, f"old log-probs of {batch.tokens} tokens"),
            self._stage(signatures.compute_advantages, request, f"advantages of {batch.groups} groups"),
        )
        update = await self._stage(signatures.update, request, f"update v{buffer} → v{buffer + 1}")
        published = await self._stage(signatures.publish, request, f"publish v{buffer + 1}")
        report = StepReport(
            run_id=start.run_id,
            buffer=buffer,
            waited_s=start.waited_s,
            train_started_at=began,
            published_at=workflow.now(),
            batch=batch,
            log_probs=log_probs,
            advantages=advantages,
            update=update,
            publish=published,
        )
        await self._record(report)
        if start.checkpoint:
            await self._checkpoint(request)
        return report

    async def _stage(
        self, stage: Callable[[StepRequest], Awaitable[Result]], request: StepRequest, summary: str
    ) -> Result:
        """One trainer activity; its type is that of the signature."""
        name = getattr(stage, "__name__", "stage").replace("_", "-")
        return await workflow.execute_activity(
            stage,
            request,
            task_queue=TRAINER_QUEUE,
            activity_id=f"{name}-{request.buffer:06d}",
            summary=summary,
            schedule_to_close_timeout=settings.TRAIN_PATIENCE,
            heartbeat_timeout=settings.TRAIN_HEARTBEAT,
            retry_policy=settings.QUICK,
        )

    async def _record(self, report: StepReport) -> None:
        await workflow.execute_activity(
            signatures.record_step,
            report,
            activity_id=f"record-{report.buffer:06d}",
            summary=f"step {report.buffer}: reward {report.batch.reward_mean:.3f}",
            start_to_close_timeout=settings.SHORT,
            schedule_to_close_timeout=settings.STORE_PATIENCE,
            retry_policy=settings.QUICK,
        )

    async def _checkpoint(self, request: StepRequest) -> CheckpointResult:
        return await self._stage(signatures.checkpoint, request, f"checkpoint of v{request.buffer + 1}")
