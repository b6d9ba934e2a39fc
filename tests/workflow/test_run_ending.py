"""A run that ends takes its unfinished groups with it: down to the engine, in the store, and in its own account."""

import asyncio
from contextlib import suppress

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, InstanceId, RunId, group_workflow, training_group
from psrl.schemas.messages.rollout import RouteRequest, RouteResult, TurnRequest, TurnResult
from psrl.schemas.messages.run import RunResult, StartRun, StopRun
from psrl.schemas.messages.training import StepRequest
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

UNFINISHED = (training_group(4), training_group(5))
"""The third batch: it is never complete."""
Run = WorkflowHandle[TrainingRun, RunResult]


class NeverComplete(ScriptedParts):
    def __init__(self) -> None:
        super().__init__()
        self.fails = asyncio.Event()
        self.inside: set[tuple[GroupId, int]] = set()
        """Trajectories that an engine works on."""
        self.all_inside = asyncio.Event()

    async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
        trajectory = (request.trajectory.group_id, request.trajectory.index)
        if request.trajectory.group_id not in UNFINISHED:
            return self.finished(request, instance)
        self.inside.add(trajectory)
        if len(self.inside) == 2 * len(UNFINISHED):
            self.all_inside.set()
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.1)
        finally:
            self.inside.discard(trajectory)

    async def on_update(self, request: StepRequest) -> None:
        """Of the second step, which ends only when the third batch is under way."""
        if request.buffer == 1:
            await self.all_inside.wait()
            if self.fails.is_set():
                raise ApplicationError("the loss is not finite", type="TrainingFailed", non_retryable=True)


async def stop(run: Run, parts: NeverComplete) -> None:
    await run.signal(TrainingRun.stop, StopRun(now=False))


async def stop_now(run: Run, parts: ScriptedParts) -> None:
    await run.signal(TrainingRun.stop, StopRun(now=True))


async def cancel(run: Run, parts: ScriptedParts) -> None:
    await run.cancel()


async def fail(run: Run, parts: NeverComplete) -> None:
    """Nothing to do: the step fails by itself."""


@pytest.mark.parametrize("end", [stop, stop_now, cancel, fail])
async def test_a_run_that_ends_cancels_what_is_in_flight(client: Client, run_id: str, end: object) -> None:
    parts = NeverComplete()
    if end is fail:
        parts.fails.set()
    async with parts.workers(client):
        start = StartRun(config=minimal_config())
        run = await client.start_workflow(TrainingRun.run, start, id=run_id, task_queue=ORCHESTRATOR_QUEUE)
        await parts.all_inside.wait()
        await end(run, parts)  # type: ignore[operator]
        with suppress(WorkflowFailureError):  # of a run that failed or was cancelled
            await run.result()
        assert parts.cancelled == dict.fromkeys(UNFINISHED, "aborted")
        for group in UNFINISHED:
            handle = client.get_workflow_handle(group_workflow(RunId(run_id), group))
            with suppress(WorkflowFailureError):
                await handle.result()
            assert (await handle.describe()).status is not WorkflowExecutionStatus.RUNNING
        while parts.inside:  # noqa: ASYNC110 - the engine hears of it with its next heartbeat
            await asyncio.sleep(0.05)


class SlowStart(ScriptedParts):
    """A wave of groups is being started until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(instances=1)
        self.starting, self.let_go = asyncio.Event(), asyncio.Event()

    @activity.defn(name="route")
    async def route(self, request: RouteRequest) -> RouteResult:
        self.starting.set()
        await self.let_go.wait()
        return await super().route(request)


@pytest.mark.parametrize("end", [stop_now, cancel])
async def test_no_group_begins_after_the_end_of_its_run(client: Client, run_id: str, end: object) -> None:
    parts = SlowStart()
    config = minimal_config(deployment={"n_rollout_instances": 1})
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await parts.starting.wait()
        await end(run, parts)  # type: ignore[operator]
        with suppress(WorkflowFailureError):
            await run.result()
        parts.let_go.set()
    # The workers are gone, and with them whoever could begin one.
    started = [group for group in parts.tags if await exists(client, group_workflow(RunId(run_id), group))]
    assert (started, len(parts.tags)) == ([], 4)


async def exists(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True
