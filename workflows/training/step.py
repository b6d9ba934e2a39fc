"""Consume: buffer `b` becomes version `b + 1`.

A DAG of idempotent activities; any of them may be repeated, and a trainer that was restarted rebuilds what a stage
needs. The version is visible to engines only after its row exists (L9). A checkpoint is begun and not waited for: the
next stage of whatever step answers for it. A step whose disk is full tells its run (signal `step_held`), and
continues when there is room.
"""

import asyncio
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from ...schemas.messages.run import StartStep, StepHeld, StepReport
    from ...schemas.messages.training import BatchRequest, CheckpointRequest, StepRequest
    from ..calls import table as calls
    from ..calls.call import Call
    from ..failure import FAILS
    from .stage import trainer_stage

Request = TypeVar("Request", bound=StepRequest)
Result = TypeVar("Result")


@workflow.defn(failure_exception_types=FAILS)
class TrainStep:
    def __init__(self) -> None:
        self._held = 0

    @workflow.run
    async def run(self, start: StartStep) -> StepReport:
        buffer, request = start.buffer, StepRequest(run_id=start.run_id, buffer=start.buffer)
        batch = await calls.make_batch(
            BatchRequest(run_id=start.run_id, buffer=buffer, taken=start.taken, dropped=start.dropped),
            activity_id=f"batch-{buffer:06d}",
            summary=f"batch {buffer}: {len(start.taken)} groups",
        )
        began = workflow.now()
        log_probs, advantages = await asyncio.gather(
            self._stage(calls.compute_log_probs, request, f"old log-probs of {batch.tokens} tokens"),
            self._stage(calls.compute_advantages, request, f"advantages of {batch.groups} groups"),
        )
        update = await self._stage(calls.update, request, f"update v{buffer} → v{buffer + 1}")
        published = await self._stage(calls.publish, request, f"publish v{buffer + 1}")
        report = StepReport(
            run_id=start.run_id,
            buffer=buffer,
            waited_s=start.waited_s,
            queue_depth=start.queue_depth,
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
            saving = CheckpointRequest(run_id=start.run_id, buffer=buffer)
            await self._stage(calls.checkpoint, saving, f"checkpoint of v{buffer + 1}")
        return report

    async def _stage(self, stage: Call[Request, Result], request: Request, summary: str) -> Result:
        async def hold(reason: str) -> None:
            """Of the stages that run at the same time, the first and the last to be held are told."""
            self._held += 1 if reason else -1
            if self._held == (1 if reason else 0):
                await self._tell_run(StepHeld(buffer=request.buffer, reason=reason))

        activity_id = f"{stage.name.replace('_', '-')}-{request.buffer:06d}"
        return await trainer_stage(stage, request, summary=summary, hold=hold, activity_id=activity_id)

    async def _tell_run(self, held: StepHeld) -> None:
        run = workflow.info().parent
        if run is None:
            return
        try:
            await workflow.get_external_workflow_handle(run.workflow_id).signal("step_held", held)
        except ApplicationError as error:
            workflow.logger.warning("run %s took no signal: %s", run.workflow_id, error)

    async def _record(self, report: StepReport) -> None:
        await calls.record_step(
            report,
            activity_id=f"record-{report.buffer:06d}",
            summary=f"step {report.buffer}: reward {report.batch.reward_mean:.3f}",
        )
