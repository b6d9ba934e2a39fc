"""The stack under test: brought up as people do it, its worker commands wrapped, its processes found by pid."""

import http.client
import json
import os
import signal
import sys
import xmlrpc.client
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import psutil
from temporalio.client import Client

from psrl.schemas.environment import PART_VARIABLE
from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import InstanceReport, InstanceState
from psrl.schemas.stack import HOME_VARIABLE, Stack
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.process import connect
from psrl.workers.stack import parts, ready
from psrl.workers.stack import up as stack_up
from psrl.workers.stack.orphans import stack_processes
from psrl.workers.stack.parts import Worker
from psrl.workers.stack.ports import PREFERRED, free_port
from psrl.workers.stack.settings import SETTINGS_FILE, UpRequest
from psrl.workers.stack.supervision import SUPERVISOR, Supervisor
from tests.support.scripted_engine import VARIABLE, Script

REPOSITORY = Path(__file__).parents[2]
SCRIPTED = "tests.chaos.engine:ChaosEngine"
VLLM = "psrl.workers.rollout.vllm_engine:VllmEngine"
ALL = "everything"
INSTANCES = 2
GONE_S = 10.0
"""For the kernel to take a killed process away: until then its port is taken, and `up` would choose another."""


@dataclass
class Site:
    home: Path
    engine: str = SCRIPTED
    script: Script = field(default_factory=Script)
    say: Callable[[str], None] = print
    stack: Stack = field(init=False)

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.home)
        self._clients: dict[str, Client] = {}

    async def up(self) -> None:
        """`psrl up`: everything, or what is missing of it. Other stacks of this process stay as they are."""
        request = UpRequest(home=self.home, cwd=REPOSITORY)
        if not (self.home / SETTINGS_FILE).exists():
            # Ports that no other stack prefers: one may be started here while a server of ours is dead.
            ports: dict[str, int] = {}
            for name in PREFERRED:
                ports[name] = free_port(ports.values())
            request = replace(request, instances=INSTANCES, parts=parts.KINDS, ports=ports)
        environment = {HOME_VARIABLE: str(self.home), VARIABLE: json.dumps(vars(self.script))}
        commands = {
            "workers": self._wrapped_workers,
            "coordinator_command": lambda: _wrapped("coordinator"),
            "gateway_command": lambda: _wrapped("gateway"),
        }
        with patch.dict(os.environ, environment), patch.multiple(stack_up, **commands):
            self.stack = await stack_up.up(request, self.say)

    @property
    def store(self) -> str:
        """For psycopg."""
        return self.stack.postgres_url.replace("+psycopg", "")

    def down(self) -> None:
        stack_up.down(self.home, self.say)

    async def client(self) -> Client:
        """Of the server of now: after `up` it may have another port."""
        address = self.stack.temporal_address
        if address not in self._clients:
            self._clients[address] = await connect(address, self.stack.namespace)
        return self._clients[address]

    # --- processes -------------------------------------------------------------------------------------------------

    def pid(self, part: str) -> int | None:
        """Of the supervised process, or of the supervisor; None while there is none."""
        try:
            if part == SUPERVISOR:
                pid = int((self.home / "run" / "supervisord.pid").read_text())
            else:
                pid = self.supervisor.states()[part].pid
        except (OSError, ValueError, KeyError, http.client.HTTPException, xmlrpc.client.Error):
            return None
        return pid if pid and psutil.pid_exists(pid) else None

    def engine_pid(self, instance: str) -> int | None:
        """Of the child that is the engine of a rollout host."""
        host = self.pid(instance)
        if host is None:
            return None
        try:
            children = psutil.Process(host).children(recursive=True)
            found = [child.pid for child in children if _is_engine(child)]
        except psutil.Error:
            return None
        return found[0] if found else None

    def kill_everything(self) -> int:
        """All at once: the supervisor first, so that it starts nothing anew."""
        left = sorted(stack_processes(self.home), key=lambda process: process.pid != self.pid(SUPERVISOR))
        for process in left:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # ended with its parent
        psutil.wait_procs(left, timeout=GONE_S)
        return len(left)

    def processes(self) -> list[str]:
        """What runs, for a message."""
        return [f"{process.pid} {process.environ().get(PART_VARIABLE)}" for process in stack_processes(self.home)]

    # --- do they work? ---------------------------------------------------------------------------------------------

    async def works(self, part: str, killed: int, since: float) -> bool:
        """Another process than `killed` does the part's work."""
        pid = self.pid(part)
        if pid is None or pid == killed:
            return False
        stack = self.stack
        servers = {
            parts.POSTGRES: lambda: ready.postgres(stack.postgres_url),
            parts.TEMPORAL: lambda: ready.temporal(stack.temporal_address, stack.namespace),
            parts.GATEWAY: lambda: ready.gateway(stack),
        }
        if part in servers:
            return not await servers[part]()
        if part == parts.COORDINATOR:
            return bool(await self.fleet())
        if part in stack.instances:
            report = (await self.fleet()).get(InstanceId(part))
            return report is not None and report.state is InstanceState.SERVING and report.pid == pid
        worker = next(worker for worker in self._wrapped_workers(parts.KINDS, ()) if worker.name == part)
        return not await ready.polls(await self.client(), worker, since)

    async def engine_works(self, instance: str, killed: int) -> bool:
        engine = self.engine_pid(instance)
        report = (await self.fleet()).get(InstanceId(instance))
        alive = engine is not None and engine != killed
        return alive and report is not None and report.state is InstanceState.SERVING

    async def fleet(self) -> dict[InstanceId, InstanceReport]:
        """Empty while the coordinator does not answer or knows nobody."""
        if await ready.coordinator(self.stack):
            return {}
        async with CoordinatorClient(self.stack.coordinator_address, self.stack.stack_id) as coordinator:
            return {item.report.instance: item.report for item in (await coordinator.fleet()).instances}

    def _wrapped_workers(self, kinds: tuple[str, ...], instances: tuple[InstanceId, ...]) -> list[Worker]:
        found = []
        for worker in parts.workers(kinds, instances):
            kind = parts.ROLLOUT if worker.name in instances else worker.name
            arguments = ("--instance", worker.name, "--engine", self.engine) if kind == parts.ROLLOUT else ()
            found.append(replace(worker, command=_wrapped(kind, *arguments)))
        return found


def _wrapped(kind: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.chaos.process", kind, *arguments)


def _is_engine(process: psutil.Process) -> bool:
    """The scripted engine's child, or vLLM's."""
    return process.name() in ("sleep", "setpriv") or "EngineCore" in " ".join([process.name(), *process.cmdline()])
