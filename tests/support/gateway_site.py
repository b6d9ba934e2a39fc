"""A gateway as a process, in front of real PostgreSQL and Temporal, the real orchestrator, and a rollout host whose
engine says what the test wants."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import URLError
from urllib.request import urlopen

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.worker import Worker

from psrl.activities.generation.turns import TurnStore
from psrl.activities.generation.writer import SegmentWriter
from psrl.activities.routing.activities import RoutingActivities
from psrl.activities.sessions.access import run_token
from psrl.activities.sessions.running import RunningSessions
from psrl.activities.store.activities import StoreActivities
from psrl.schemas.ids import InstanceId, RunId, Version, rollout_queue
from psrl.schemas.messages.rollout import EngineSpec
from psrl.schemas.stack import HOME_VARIABLE, STACK_FILE, Stack
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.coordinator.server import start_server
from psrl.workers.orchestrator import orchestrator
from psrl.workers.rollout.activities import RolloutActivities
from psrl.workers.rollout.calls import Calls
from psrl.workers.rollout.engine import Chunk, EngineRequest, StreamEnd
from psrl.workers.rollout.generate import Generator
from psrl.workers.rollout.host import Host
from psrl.workers.rollout.reporter import keep_attached
from tests.support.child import free_port, spawn, stop
from tests.support.rollout import SPEC, ScriptedWeights
from tests.support.runs import CHARACTER_BASE, admit, config_values, ids_of, sums, write_jsonl
from tests.support.scripted_engine import STOP_ID, Script, ScriptedEngine
from tests.support.tiny_model import make_tiny_model

REPOSITORY = Path(__file__).parents[2]
INSTANCE = InstanceId("rollout-0")
CONTEXT = 4000
START_TIMEOUT_S = 90.0
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
"""A tool that agents offer."""
TEMPLATE = (
    "{% for tool in tools or [] %}{{ '<|user|>' + tool['function']['name'] }}{% endfor %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}{{ '<tool_call>\n' + call['function']['name'] + "
    "call['function']['arguments'] | tojson + '\n</tool_call>' }}{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_talking_model(folder: Path, context_tokens: int = CONTEXT) -> Path:
    """A tiny model with room for a conversation, whose template knows tools and their calls."""
    made = make_tiny_model(folder, context_tokens=context_tokens)
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


def spoken(text: str) -> list[int]:
    """How the tiny tokenizer spells it, as a whole turn."""
    return [*(CHARACTER_BASE if character == "\n" else ids_of(character)[0] for character in text), STOP_ID]


class SpeakingEngine(ScriptedEngine):
    """Answers request after request with the given texts, in pieces as a real one does."""

    def __init__(self, script: Script, answers: Sequence[str]) -> None:
        super().__init__(script)
        self._answers = list(answers)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        text = self._answers[len(self.requests) % len(self._answers)]
        self.requests.append(request)
        version = str(self.loaded[-1])
        ids = spoken(text)[: request.sampling.max_tokens]
        await self._enter(request.request_id)
        try:
            for number, token in enumerate(ids, start=1):
                if not await self._may_sample(request.request_id):
                    yield Chunk([], [], StreamEnd.ABORTED, (version,))
                    return
                stopped = StreamEnd.STOP if token == STOP_ID else StreamEnd.LENGTH
                end = stopped if number == len(ids) else None
                yield Chunk([token], [-number / 8], end, (version,) if end else ())
        finally:
            await self._leave(request.request_id)


@dataclass
class GatewaySite:
    client: Client
    store: AsyncEngine
    stack: Stack
    run_id: RunId
    run_token: str
    engine: SpeakingEngine
    host: Host
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.stack.gateway_address}"

    async def start_gateway(self) -> None:
        """Returns when it answers."""
        command = [sys.executable, "-m", "psrl.workers.gateway"]
        log = self.stack.home / "gateway.log"
        self.processes.append(spawn(command, log))
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await asyncio.to_thread(self._healthy):
            assert self.processes[-1].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            await asyncio.sleep(0.05)

    def kill_gateway(self) -> None:
        self.processes[-1].kill()
        self.processes[-1].wait()

    def _healthy(self) -> bool:
        try:
            with urlopen(f"{self.url}/healthz", timeout=5) as answer:
                return bool(json.load(answer)["status"] == "ok")
        except (URLError, OSError):
            return False


@asynccontextmanager
async def gateway_site(
    client: Client,
    stack: Stack,
    store: AsyncEngine,
    model: Path,
    answers: Sequence[str],
    *,
    script: Script | None = None,
    hosted: tuple[Host, EngineSpec] | None = None,
    rows: Sequence[dict[str, Any]] = tuple(sums(4)),
    **psrl: Any,
) -> AsyncIterator[GatewaySite]:
    """Everything is up, the instance serves version 0, and one gateway runs. `psrl`: settings of that section.
    `hosted`: a host to be started, in place of the one whose engine gives the answers."""
    async with AsyncExitStack() as entered:
        server, port = await start_server("127.0.0.1:0", stack.stack_id)
        entered.push_async_callback(server.stop, None)
        addresses = {"coordinator_address": f"127.0.0.1:{port}", "gateway_address": f"127.0.0.1:{free_port()}"}
        stack = stack.model_copy(update=addresses)
        (stack.home / STACK_FILE).write_text(stack.model_dump_json())
        code = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        entered.enter_context(patch.dict(os.environ, {HOME_VARIABLE: str(stack.home), "PYTHONPATH": code}))
        coordinator = await entered.enter_async_context(CoordinatorClient(stack.coordinator_address))
        activities = StoreActivities(store, RunningSessions(client)), RoutingActivities(coordinator)
        await entered.enter_async_context(orchestrator(client, *activities))
        run_id = RunId(f"run-{uuid.uuid4().hex[:8]}")
        train = write_jsonl(stack.home / "train.jsonl", rows)
        await _admit(store, train, model, run_id, psrl)
        engine = SpeakingEngine(script or Script(), answers)
        host, spec = hosted or (Host(INSTANCE, lambda: engine, ScriptedWeights()), SPEC)
        site = GatewaySite(client, store, stack, run_id, await run_token(store, run_id), engine, host)
        await _start_host(entered, site, spec, coordinator)
        entered.callback(_end, site)
        await site.start_gateway()
        yield site


async def _admit(store: AsyncEngine, train: Path, model: Path, run_id: RunId, psrl: dict[str, Any]) -> None:
    lengths = {"max_prompt_length": 100, "max_response_length": 200}
    sections = {"data": lengths, "rollout": {"max_model_len": CONTEXT}, "psrl": psrl}
    values = config_values(model, train, **sections)
    await admit(store, values, run_id)


async def _start_host(
    entered: AsyncExitStack, site: GatewaySite, spec: EngineSpec, coordinator: CoordinatorClient
) -> None:
    client, store, host, run_id = site.client, site.store, site.host, site.run_id
    writer, stopping = SegmentWriter(store), asyncio.Event()
    calls = Calls(INSTANCE, Generator(host, TurnStore(store), writer))
    entered.push_async_callback(host.shutdown)
    entered.push_async_callback(writer.close)
    entered.push_async_callback(calls.close)
    await host.start(spec.model_copy(update={"run_id": run_id, "context_tokens": CONTEXT}))
    await host.pause(run_id, interrupt=True)
    await host.pull(run_id, Version(0))
    await host.resume(run_id)
    activities = RolloutActivities(host, calls, stopping)
    worker = Worker(client, task_queue=rollout_queue(INSTANCE), activities=activities.all)
    await entered.enter_async_context(worker)
    entered.callback(stopping.set)
    reports = asyncio.create_task(keep_attached(host, coordinator, asyncio.Event()))
    entered.push_async_callback(_ended, reports)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _end(site: GatewaySite) -> None:
    for process in site.processes:
        stop(process, signal.SIGKILL)
