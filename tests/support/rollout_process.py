"""A rollout host as a process of its own, between real Temporal, PostgreSQL and coordinator, driven by the real
`RolloutInstance` workflow."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from psrl.activities import signatures
from psrl.activities.weights.transports import open_transport
from psrl.activities.weights.versions import publish_version
from psrl.schemas.config import PsMode
from psrl.schemas.ids import InstanceId, Version, rollout_queue
from psrl.schemas.messages.rollout import EngineSpec, GenerateRequest, InstanceReport, TurnRequest, TurnResult
from psrl.schemas.messages.run import InstanceChanged, StartInstance
from psrl.schemas.stack import HOME_VARIABLE, STACK_FILE, Stack
from psrl.schemas.weights import WeightProbe
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.coordinator.server import start_server
from psrl.workflows.calls.settings import HEARTBEAT
from psrl.workflows.rollout.instance import RolloutInstance
from tests.support.child import spawn, stop
from tests.support.rollout import RUN, group_call
from tests.support.signal_sink import SignalSink

REPOSITORY = Path(__file__).parents[2]
SCRIPTED = "tests.support.scripted_engine:ScriptedEngine"


@workflow.defn
class GenerateOnce:
    """One turn in a call of its own: its failure is the workflow's."""

    @workflow.run
    async def run(self, instance: InstanceId, request: GenerateRequest, heartbeat_s: float) -> TurnResult:
        result = await workflow.execute_activity(
            signatures.generate,
            request,
            task_queue=rollout_queue(instance),
            schedule_to_close_timeout=timedelta(seconds=180),
            heartbeat_timeout=timedelta(seconds=heartbeat_s),
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
        (turn,) = result.turns
        if turn.failure is not None:
            raise ApplicationError(turn.failure.message, type=turn.failure.type)
        return turn


@dataclass
class Site:
    """Everything around the hosts. Names are unique: tests share one Temporal server."""

    client: Client
    stack: Stack
    store: AsyncEngine
    coordinator: CoordinatorClient
    queue: str
    tag: str
    driven: list[WorkflowHandle[Any, str]] = field(default_factory=list)

    def instance(self, number: int = 0) -> InstanceId:
        return InstanceId(f"rollout-{self.tag}-{number}")

    def start_host(self, instance: InstanceId, engine: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "psrl.workers.rollout.main", "--instance", instance]
        return spawn([*command, *(["--engine", engine] if engine else [])], self.log(instance))

    def log(self, instance: InstanceId) -> Path:
        return self.stack.home / f"{instance}.log"

    async def publish(self, version: int, tensors: dict[str, torch.Tensor], probe: WeightProbe) -> None:
        manifest = open_transport(PsMode.FILE, self.stack.weights_dir).write(RUN, Version(version), tensors, probe)
        async with self.store.begin() as connection:
            await connection.run_sync(publish_version, manifest)

    async def drive(self, instance: InstanceId, spec: EngineSpec) -> WorkflowHandle[Any, str]:
        """The instance's workflow, as a run starts it."""
        start = StartInstance(
            run_workflow_id=f"run-{self.tag}",
            instance=instance,
            spec=spec,
            version=0,
            interrupt=True,
            start_timeout_s=120,
        )
        handle = await self.client.start_workflow(
            RolloutInstance.run, start, id=f"{self.tag}/{instance}", task_queue=self.queue
        )
        self.driven.append(handle)
        return handle

    async def terminate_driven(self) -> None:
        for handle in self.driven:
            with suppress(RPCError):  # it has ended
                await handle.terminate()

    async def generate(
        self, instance: InstanceId, turn: TurnRequest, heartbeat_s: float = HEARTBEAT.total_seconds()
    ) -> WorkflowHandle[Any, TurnResult]:
        return await self.client.start_workflow(
            GenerateOnce.run,
            args=[instance, group_call(turn), heartbeat_s],
            id=f"{self.tag}/{uuid.uuid4().hex}",
            task_queue=self.queue,
        )

    async def changes(self) -> list[InstanceChanged]:
        """What the instances told their run."""
        sink = self.client.get_workflow_handle(f"run-{self.tag}")
        return await sink.query("changes", result_type=list[InstanceChanged])

    async def serving(self, instance: InstanceId, version: int, not_pid: int = 0) -> InstanceReport:
        """Wait until the coordinator knows the instance as serving."""
        async with asyncio.timeout(240):
            while True:
                for found in (await self.coordinator.fleet()).instances:
                    report = found.report
                    same = (report.instance, report.state, report.version) == (instance, "serving", version)
                    if same and report.pid != not_pid:
                        return report
                await asyncio.sleep(0.05)


@asynccontextmanager
async def open_site(
    client: Client, stack: Stack, store: AsyncEngine, environment: dict[str, str] | None = None
) -> AsyncIterator[Site]:
    server, port = await start_server("127.0.0.1:0")
    stack = stack.model_copy(update={"coordinator_address": f"127.0.0.1:{port}"})
    (stack.home / STACK_FILE).write_text(stack.model_dump_json())
    code = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    settings = {HOME_VARIABLE: str(stack.home), "PYTHONPATH": code, **(environment or {})}
    before = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    tag = uuid.uuid4().hex[:8]
    try:
        async with (
            CoordinatorClient(stack.coordinator_address) as coordinator,
            Worker(
                client,
                task_queue=f"site-{tag}",
                workflows=[RolloutInstance, SignalSink, GenerateOnce],
                workflow_runner=UnsandboxedWorkflowRunner(),
            ),
        ):
            site = Site(client, stack, store, coordinator, f"site-{tag}", tag)
            sink = await client.start_workflow(SignalSink.run, id=f"run-{tag}", task_queue=site.queue)
            try:
                yield site
            finally:
                await site.terminate_driven()
                await sink.terminate()
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
        await server.stop(None)
        _collect_dropped_workflows()


def _collect_dropped_workflows() -> None:
    """A workflow that is terminated while its worker goes is dropped in the middle of an await, which Python reports
    whenever it collects the coroutine: better here than in another test."""
    report, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = report


def end(process: subprocess.Popen[bytes]) -> None:
    stop(process, signal.SIGKILL)
