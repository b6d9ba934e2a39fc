"""Every part of a stack around real PostgreSQL and Temporal, with scripted engines and a real trainer of a tiny model.

The parts live in the process of the test, so that it can hold them at chosen points; rollout hosts may be processes of
their own, so that it can kill them. `run` starts the real `TrainingRun` workflow, and nothing between it and the
engine is replaced.
"""

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import Worker

from psrl.activities.boundary import boundary
from psrl.activities.environments.step import Environments
from psrl.activities.generation.turns import TurnStore
from psrl.activities.generation.writer import SegmentWriter
from psrl.activities.routing.activities import RoutingActivities
from psrl.activities.routing.contexts import Contexts
from psrl.activities.sessions.running import RunningSessions
from psrl.activities.store.activities import StoreActivities
from psrl.activities.weights.transports import every_transport
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, InstanceId, RunId, environments_queue, rollout_queue
from psrl.schemas.messages.rollout import InstanceReport, PauseRequest
from psrl.schemas.messages.run import RunResult, RunStatus, StartRun
from psrl.schemas.stack import HOME_VARIABLE, STACK_FILE, Stack
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.coordinator.server import start_server
from psrl.workers.cpu import cpu_worker, environment_worker
from psrl.workers.orchestrator import CACHED_WORKFLOWS, orchestrator
from psrl.workers.rollout.activities import RolloutActivities
from psrl.workers.rollout.calls import Calls
from psrl.workers.rollout.generate import Generator
from psrl.workers.rollout.host import Host
from psrl.workers.rollout.reporter import keep_attached
from psrl.workers.rollout.source import PublishedWeights
from psrl.workers.trainer.main import main as trainer_main
from tests.support.child import spawn
from tests.support.histories import replay_run
from tests.support.runs import config_values, sums, write_jsonl
from tests.support.scripted_engine import VARIABLE, Script, ScriptedEngine

REPOSITORY = Path(__file__).parents[2]
SCRIPTED = "tests.support.scripted_engine:ScriptedEngine"
RUN_TIMEOUT_S = 200


@dataclass
class InProcessHost:
    """One rollout host as a task of the test's process."""

    instance: InstanceId
    script: Script
    may_pause: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: a sync waits before the gate is shut, so that the instance goes on serving its version."""
    engines: list[ScriptedEngine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.may_pause.set()

    def make_engine(self) -> ScriptedEngine:
        self.engines.append(ScriptedEngine(self.script))
        return self.engines[-1]


class HeldActivities(RolloutActivities):
    """The host's activities, with a pause that the test may hold."""

    def __init__(self, place: InProcessHost, host: Host, calls: Calls, stopping: asyncio.Event) -> None:
        super().__init__(host, calls, stopping)
        self._place = place

    @activity.defn(name="pause")
    @boundary
    async def pause(self, request: PauseRequest) -> None:
        while not self._place.may_pause.is_set():
            activity.heartbeat()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._place.may_pause.wait(), 1)
        await self._host.pause(request.run_id, request.interrupt)


@dataclass
class SmallStack:
    client: Client
    stack: Stack
    store: AsyncEngine
    coordinator: CoordinatorClient
    model: Path
    hosts: dict[InstanceId, InProcessHost]
    processes: dict[InstanceId, subprocess.Popen[bytes]]
    run_id: RunId
    """A name of this stack alone; its run takes it."""
    coordinators: list[Any]
    """Servers, in the order in which they were started; the last one lives."""

    def config(self, prompts: Sequence[dict[str, Any]] | int = 64, **sections: dict[str, Any]) -> dict[str, Any]:
        """A configuration that fits the stack: small, fast, validated as any other."""
        rows = sums(prompts) if isinstance(prompts, int) else prompts
        train = write_jsonl(self.stack.home / "train.jsonl", rows)
        values = config_values(
            self.model,
            train,
            data={"max_prompt_length": 24, "max_response_length": 12},
            rollout={"dtype": "float32", "weight_probe_tolerance": 1e6},
            trainer={"total_training_steps": 3},
            reward={"function": "tests.support.rewards:length"},
        )
        deployment = {"n_rollout_instances": len(self.stack.instances), "start_timeout_s": 60}
        values["psrl"] |= {"deployment": deployment, "flush_tokens": 4}
        # JSON, as a person's client would send it.
        return json.loads(
            json.dumps({key: {**values.get(key, {}), **sections.get(key, {})} for key in {**values, **sections}})
        )

    async def start(self, config: dict[str, Any]) -> WorkflowHandle[Any, RunResult]:
        return await self.client.start_workflow(
            "TrainingRun",
            StartRun(config=config),
            id=self.run_id,
            task_queue=ORCHESTRATOR_QUEUE,
            result_type=RunResult,
        )

    async def finish(self, run: WorkflowHandle[Any, RunResult], timeout_s: float = RUN_TIMEOUT_S) -> RunResult:
        try:
            return await asyncio.wait_for(run.result(), timeout_s)
        except TimeoutError as error:
            raise AssertionError(f"the run did not end within {timeout_s} s: {await self.status()}") from error

    async def run(self, config: dict[str, Any]) -> RunResult:
        return await self.finish(await self.start(config))

    async def status(self) -> RunStatus:
        handle = self.client.get_workflow_handle(self.run_id)
        return await handle.query("status", result_type=RunStatus)

    async def report_of(self, instance: InstanceId) -> InstanceReport | None:
        found = [item.report for item in (await self.coordinator.fleet()).instances]
        return next((report for report in found if report.instance == instance), None)

    async def kill_coordinator(self) -> None:
        """Every call and stream breaks off, all that it knew is gone, and another listens at the same address."""
        await self.coordinators[-1].stop(None)
        server, _ = await start_server(self.stack.coordinator_address)
        self.coordinators.append(server)

    def start_process(self, instance: InstanceId) -> None:
        command = [sys.executable, "-m", "psrl.workers.rollout.main", "--instance", instance, "--engine", SCRIPTED]
        self.processes[instance] = spawn(command, self.stack.home / f"{instance}.log")

    async def histories(self, expected: int = 0) -> dict[str, list[WorkflowHistory]]:
        """Of every execution of the run's workflows, by type. The server lists an execution a moment after its end, so
        the list is read again until nothing in it runs and it has `expected` entries."""
        async with asyncio.timeout(60):
            while True:
                query = f"RlRun = '{self.run_id}'"
                found = [execution async for execution in self.client.list_workflows(query)]
                running = [item for item in found if item.status is WorkflowExecutionStatus.RUNNING]
                if not running and len(found) >= expected:
                    break
                await asyncio.sleep(0.1)
        histories: dict[str, list[WorkflowHistory]] = {}
        for item in found:
            history = await self.client.get_workflow_handle(item.id, run_id=item.run_id).fetch_history()
            histories.setdefault(item.workflow_type, []).append(history)
        return histories


OpenStack = Callable[..., AbstractAsyncContextManager[SmallStack]]
"""`small_stack` with the services of the test (fixture `open_stack`)."""


@asynccontextmanager
async def small_stack(
    client: Client,
    stack: Stack,
    store: AsyncEngine,
    model: Path,
    *,
    script: Script | None = None,
    instances: int = 2,
    processes: Sequence[int] = (),
    process_script: Script | None = None,
    cached_workflows: int = CACHED_WORKFLOWS,
) -> AsyncIterator[SmallStack]:
    """Started parts. `processes` are the numbers of the rollout hosts that are processes of their own, by default with
    the same script. When the block ends, every history that its run has left is replayed, then what still runs is
    terminated."""
    script = script or Script()
    async with AsyncExitStack() as entered:
        server, port = await start_server("127.0.0.1:0")
        servers = [server]
        entered.push_async_callback(lambda: servers[-1].stop(None))
        names = tuple(InstanceId(f"rollout-{number}") for number in range(instances))
        stack = stack.model_copy(update={"coordinator_address": f"127.0.0.1:{port}", "instances": names})
        (stack.home / STACK_FILE).write_text(stack.model_dump_json())
        code = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        _set_environment(entered, {HOME_VARIABLE: str(stack.home), "PYTHONPATH": code})
        _set_environment(entered, {VARIABLE: json.dumps(vars(process_script or script))})
        coordinator = await entered.enter_async_context(CoordinatorClient(stack.coordinator_address))
        await _start_trainer(entered, stack)
        routing = RoutingActivities(coordinator, Contexts(store))
        activities = StoreActivities(store, RunningSessions(client))
        await entered.enter_async_context(orchestrator(client, activities, routing, cached_workflows))
        queue = environments_queue(uuid.uuid4().hex[:8])
        environments = Environments(store, queue)
        entered.push_async_callback(environments.end)
        await entered.enter_async_context(cpu_worker(client, store, instances, environments=environments))
        await entered.enter_async_context(environment_worker(client, queue, environments))
        hosts = {name: InProcessHost(name, script) for i, name in enumerate(names) if i not in processes}
        run_id = RunId(f"run-{uuid.uuid4().hex[:8]}")
        small = SmallStack(client, stack, store, coordinator, model, hosts, {}, run_id, servers)
        for host in hosts.values():
            await _start_host(entered, small, host)
        entered.callback(_kill, small.processes)
        for number in processes:
            small.start_process(names[number])
        entered.push_async_callback(_terminate_rest, small)
        yield small
        await replay_run(client, run_id)


async def _start_trainer(entered: AsyncExitStack, stack: Stack) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(trainer_main(stack, stop))

    async def end() -> None:
        stop.set()
        await task

    entered.push_async_callback(end)


async def _start_host(entered: AsyncExitStack, small: SmallStack, place: InProcessHost) -> None:
    """As `workers.rollout.main` does."""
    client, stack, store, coordinator = small.client, small.stack, small.store, small.coordinator
    host = Host(place.instance, place.make_engine, PublishedWeights(store, every_transport(stack.weights_dir)))
    writer, stopping = SegmentWriter(store), asyncio.Event()
    calls = Calls(place.instance, Generator(host, TurnStore(store), writer))
    activities = HeldActivities(place, host, calls, stopping)
    reports = asyncio.create_task(keep_attached(host, coordinator, asyncio.Event()))
    entered.callback(reports.cancel)
    entered.push_async_callback(host.shutdown)
    entered.push_async_callback(writer.close)
    entered.push_async_callback(calls.close)
    worker = Worker(
        client, task_queue=rollout_queue(place.instance), activities=activities.all, max_concurrent_activities=256
    )
    await entered.enter_async_context(worker)
    entered.callback(stopping.set)


async def _terminate_rest(small: SmallStack) -> None:
    """After a run that ended by itself there is none."""
    for host in small.hosts.values():
        host.may_pause.set()
    query = f"(RlRun = '{small.run_id}' OR WorkflowId = '{small.run_id}') AND ExecutionStatus = 'Running'"
    async for execution in small.client.list_workflows(query):
        with suppress(RPCError):  # it has ended meanwhile
            await small.client.get_workflow_handle(execution.id).terminate()


def _kill(processes: Mapping[InstanceId, subprocess.Popen[bytes]]) -> None:
    for process in processes.values():
        process.kill()
        process.wait()


def _set_environment(entered: AsyncExitStack, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        before = os.environ.get(key)
        os.environ[key] = value
        if before is None:
            entered.callback(os.environ.pop, key, None)
        else:
            entered.callback(os.environ.__setitem__, key, before)
