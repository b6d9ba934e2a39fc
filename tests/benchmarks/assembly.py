"""A stack as `psrl up` starts it, with rollout hosts on a chosen engine, and one admitted run that trains nothing."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from transformers import AutoModelForCausalLM, AutoTokenizer

from psrl.activities.data.admit import Admit
from psrl.activities.data.dataset import DatasetCache
from psrl.activities.data.draw import Draw
from psrl.activities.store.connections import async_store
from psrl.activities.weights.transports import open_transport
from psrl.activities.weights.versions import publish_version
from psrl.schemas.config import PsMode, RunConfig
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, InstanceId, RunId, Version, instance_workflow
from psrl.schemas.messages.data import AdmitRequest, DrawRequest
from psrl.schemas.messages.rollout import EngineSpec, InstanceState, Sampling
from psrl.schemas.messages.run import GroupOutcome, GroupReport, RolloutSettings, StartGroup, StartInstance
from psrl.schemas.stack import STACK_FILE, Stack
from psrl.schemas.weights import WeightProbe
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.process import connect
from psrl.workers.rollout.engine import DEFAULT_ENGINE
from psrl.workers.stack.parts import environment, instance_ids
from psrl.workers.stack.settings import UpRequest
from psrl.workers.stack.supervision import Supervisor
from psrl.workers.stack.up import down, up
from psrl.workers.trainer.probe import weight_probe
from tests.benchmarks.driver import MeasuredRun, Work
from tests.support.child import spawn, stop
from tests.support.scripted_engine import VARIABLE, scripted_probe

REPOSITORY = Path(__file__).parents[2]
RUN = RunId("bench")
DRIVER_QUEUE = "bench"
PARTS = ("postgres", "temporal", "coordinator", "orchestrator", "cpu")
SCRIPTED = "tests.support.scripted_engine:ScriptedEngine"
START_TIMEOUT_S = 120


@dataclass(frozen=True)
class Shape:
    """What is generated."""

    model: Path
    prompts: Path
    """JSON lines."""
    prompt_tokens: int
    """At most."""
    new_tokens: int
    """At most."""
    trajectories: int
    """Of one group."""
    instances: int
    seqs: int
    """Sequences one engine runs at the same time."""
    engine: str = DEFAULT_ENGINE
    script: dict[str, Any] = field(default_factory=dict)
    reward: str = "tests.support.rewards:length"
    kv_cache_gb: float = 0.064
    flush_tokens: int = 256
    context_tokens: int | None = None
    """Of a conversation; None: as long as prompt and answer."""

    def config(self) -> dict[str, Any]:
        return {
            "model": {"path": str(self.model)},
            "data": {
                "train_files": [str(self.prompts)],
                "max_prompt_length": self.prompt_tokens,
                "max_response_length": self.new_tokens,
            },
            "psrl": {
                "staleness": 1,
                "staleness_buffer_entries": 16,
                "rollout_n": self.trajectories,
                "flush_tokens": self.flush_tokens,
                "deployment": {"n_rollout_instances": self.instances},
                "rollout_coordination": {"routing_strategy": {"max_concurrent_seqs_per_instance": self.seqs}},
            },
            # Nothing is trained; with it, groups of one would be refused.
            "algorithm": {"norm_adv_by_std_in_grpo": False},
            "rollout": {"dtype": "float32", "kv_cache_gb": self.kv_cache_gb, "max_model_len": self.context_tokens},
            "reward": {"function": self.reward},
        }


@dataclass
class Assembly:
    stack: Stack
    shape: Shape
    config: RunConfig
    client: Client
    store: AsyncEngine
    coordinator: CoordinatorClient
    run: WorkflowHandle[Any, Any]
    hosts: dict[str, subprocess.Popen[bytes]]
    drawn: int = 0

    def pids(self) -> dict[str, int]:
        """Of every part; rollout hosts by the name of their instance."""
        parts = {name: state.pid for name, state in Supervisor(self.stack.home).states().items()}
        return parts | {name: host.pid for name, host in self.hosts.items()}

    async def draw(self, count: int) -> tuple[GroupId, ...]:
        """New groups, in the store."""
        first, self.drawn = self.drawn, self.drawn + count
        request = DrawRequest(
            run_id=RUN,
            first=first,
            tags=(0,) * count,
            places=tuple(range(first, first + count)),
            trajectories=self.config.psrl.offered_trajectories,
        )
        return (await Draw(self.store, DatasetCache()).draw_groups(request)).groups

    async def play(self, groups: Sequence[GroupId], wave: int = 32, in_flight: int = 32) -> list[GroupReport]:
        """Every group from its start to its report. A group that fails ends the measurement."""
        work = Work(template=self._template(), groups=tuple(groups), wave=wave, in_flight=in_flight)
        reports = await self.run.execute_update(MeasuredRun.play, work)
        failed = [report for report in reports if report.outcome is not GroupOutcome.COMPLETE]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(reports)} groups failed, first: {failed[0]}")
        return reports

    async def sync(self, version: Version) -> None:
        """Returns when every instance serves the published version, as a run would ask for it."""
        for instance in self.stack.instances:
            handle = self.client.get_workflow_handle(instance_workflow(RUN, instance))
            await handle.signal("sync", int(version))
        await self.serving(version)

    async def serving(self, version: int) -> None:
        """Wait for it. The coordinator is asked, because it is who sends work; it has no event to wait for."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while await self._serving(version) < len(self.stack.instances):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _serving(self, version: int) -> int:
        reports = [found.report for found in (await self.coordinator.fleet()).instances]
        return sum(report.state is InstanceState.SERVING and report.version >= version for report in reports)

    def sampling(self) -> Sampling:
        return RolloutSettings.of(self.config).sampling

    def _template(self) -> StartGroup:
        return StartGroup(
            run_id=RUN,
            group_id=GroupId(""),
            run_workflow_id=self.run.id,
            version_tag=0,
            rollout=RolloutSettings.of(self.config),
        )


@asynccontextmanager
async def assembled(shape: Shape, parts: tuple[str, ...] = PARTS) -> AsyncIterator[Assembly]:
    """Everything serves version 0 when this yields; nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        home = Path(folder) / "home"
        stack = await up(UpRequest(home=home, cwd=REPOSITORY, instances=shape.instances, parts=parts), _silent)
        stack = stack.model_copy(update={"instances": instance_ids(shape.instances)})
        (home / STACK_FILE).write_text(stack.model_dump_json())
        stack.weights_dir.mkdir(exist_ok=True)
        hosts: dict[str, subprocess.Popen[bytes]] = {}
        try:
            async with AsyncExitStack() as entered:
                assembly = await _assemble(entered, stack, shape, hosts)
                hosts.update({name: start_host(stack, shape, name) for name in stack.instances})
                await _serve(assembly)
                yield assembly
        finally:
            for host in hosts.values():
                stop(host, signal.SIGTERM)
            await asyncio.to_thread(down, home, _silent)


async def _assemble(
    entered: AsyncExitStack, stack: Stack, shape: Shape, hosts: dict[str, subprocess.Popen[bytes]]
) -> Assembly:
    client = await connect(stack.temporal_address, stack.namespace)
    store = async_store(stack.postgres_url)
    entered.push_async_callback(store.dispose)
    coordinator = await entered.enter_async_context(CoordinatorClient(stack.coordinator_address))
    worker = Worker(
        client, task_queue=DRIVER_QUEUE, workflows=[MeasuredRun], workflow_runner=UnsandboxedWorkflowRunner()
    )
    await entered.enter_async_context(worker)
    request = AdmitRequest(run_id=RUN, config=shape.config(), workflow_run_id="bench")
    admission = await Admit(store, DatasetCache(), shape.instances).admit_run(request)
    config = RunConfig.model_validate(admission.config)
    run = await client.start_workflow(MeasuredRun.run, id=RUN, task_queue=DRIVER_QUEUE)
    entered.push_async_callback(run.terminate)
    return Assembly(stack, shape, config, client, store, coordinator, run, hosts)


async def _serve(assembly: Assembly) -> None:
    """Publish version 0 and let every instance serve it."""
    shape, stack, config = assembly.shape, assembly.stack, assembly.config
    tensors, probe = version_of(shape, config)
    manifest = open_transport(PsMode.FILE, stack.weights_dir).write(RUN, Version(0), tensors, probe)
    async with assembly.store.begin() as connection:
        await connection.run_sync(publish_version, manifest)
    for instance in stack.instances:
        start = StartInstance(
            run_workflow_id=assembly.run.id,
            instance=instance,
            spec=engine_spec(shape, config),
            version=0,
            interrupt=True,
            start_timeout_s=START_TIMEOUT_S,
        )
        await assembly.client.start_workflow(
            "RolloutInstance", start, id=instance_workflow(RUN, instance), task_queue=ORCHESTRATOR_QUEUE
        )
    await assembly.serving(0)


def version_of(shape: Shape, config: RunConfig) -> tuple[dict[str, torch.Tensor], WeightProbe]:
    """The initial weights of the shape's model, as its trainer would publish them."""
    if shape.engine != DEFAULT_ENGINE:
        return {"empty": torch.zeros(1)}, scripted_probe(0)
    tensors = load_file(shape.model / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(shape.model, dtype=torch.float32)
    return tensors, weight_probe(model, AutoTokenizer.from_pretrained(shape.model), config)


def engine_spec(shape: Shape, config: RunConfig) -> EngineSpec:
    return EngineSpec.of(RUN, config).model_copy(update={"max_num_seqs": shape.seqs})


def start_host(stack: Stack, shape: Shape, instance: InstanceId) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "psrl.workers.rollout.main", "--instance", instance, "--engine", shape.engine]
    settings = {**environment(stack.home, REPOSITORY), VARIABLE: json.dumps(shape.script)}
    return spawn(
        ["/usr/bin/env", *(f"{key}={value}" for key, value in settings.items()), *command],
        stack.home / "logs" / f"{instance}.log",
    )


def _silent(line: str) -> None:
    return None
