"""One start in progress: the parts of a stack come up in order of dependence, and each server is identified.

A server of our own is known by its process, which listens on our port: whatever id it has is remembered. One that was
given by the user is known by the id that it had before; another id is refused until the user accepts it (L14).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from ...activities.store.migrate import upgrade
from ...schemas.errors import FatalError, Unreachable, UserError, another_stacks, one_line
from ...schemas.stack import Stack
from ..identity import namespace_id
from ..process import connect
from . import ready
from .parts import COORDINATOR, GATEWAY, POSTGRES, TEMPORAL, Worker
from .settings import DATABASE, Settings, UpRequest, save
from .supervision import Program, Supervisor
from .temporal import ensure_search_attributes

Say = Callable[[str], None]

EXTERNAL_TIMEOUT_S = 20.0
"""How long an existing server gets to answer."""
POLL_S = 0.1
LOG_LINES = 15
STARTS_TOLERATED = 3
"""A part that ended so often before it was up will not come up."""


@dataclass
class Plan:
    """One start in progress."""

    request: UpRequest
    settings: Settings
    stack: Stack
    supervisor: Supervisor
    programs: dict[str, Program]
    say: Say
    deadline: float
    workers: list[Worker]

    def identified(self, server: str, found: str) -> None:
        """Remember the id of a server (`temporal_id` or `store_id`): from now on it is the one that must answer."""
        self.settings = self.settings.model_copy(update={server: found})
        self.stack = save(self.settings, self.stack.home)


async def start(plan: Plan) -> None:
    """In order of dependence: each part finds what it needs when it starts."""
    await _start_store(plan)
    await _start_temporal(plan)
    if COORDINATOR in plan.settings.embedded:
        await _bring_up(plan, COORDINATOR, partial(ready.coordinator, plan.stack))
        plan.say(f"coordinator ready at {plan.stack.coordinator_address}")
    if GATEWAY in plan.settings.embedded:
        plan.supervisor.launch(plan.programs[GATEWAY])  # it comes up while the workers do
    await _start_workers(plan)
    if GATEWAY in plan.settings.embedded:
        await _wait(plan, GATEWAY, partial(ready.gateway, plan.stack))
        plan.say(f"gateway ready at http://{plan.stack.gateway_address}")


async def _start_store(plan: Plan) -> None:
    if POSTGRES not in plan.settings.parts:
        return
    url = plan.stack.postgres_url
    address = make_url(url).render_as_string()  # without its password
    if POSTGRES in plan.settings.embedded:
        await _bring_up(plan, POSTGRES, partial(ready.postgres, url, "postgres"))
        await ready.ensure_database(url, DATABASE)
    else:
        await _wait_external("PostgreSQL", "--postgres-url", address, partial(ready.postgres, url))
        _require_known("PostgreSQL", address, await ready.store_id(url) or "empty", plan.settings.store_id)
    try:
        await asyncio.to_thread(upgrade, url)
    except SQLAlchemyError as error:
        said = one_line(getattr(error, "orig", error))  # without the statement and a link to SQLAlchemy's pages
        raise UserError(f"the store at {address} cannot be migrated: {said}") from error
    plan.identified("store_id", await ready.store_id(url))
    where = f"127.0.0.1:{plan.settings.ports[POSTGRES]}" if POSTGRES in plan.settings.embedded else "the given address"
    plan.say(f"postgres ready at {where}, schema up to date")


async def _start_temporal(plan: Plan) -> None:
    if TEMPORAL not in plan.settings.parts:
        return
    address, namespace = plan.stack.temporal_address, plan.stack.namespace
    embedded = TEMPORAL in plan.settings.embedded
    if embedded:
        await _bring_up(plan, TEMPORAL, partial(_our_temporal, plan))
    else:
        await _wait_external("Temporal", "--temporal-address", address, partial(ready.temporal, address, namespace))
    client = await connect(address, namespace)
    found = await namespace_id(client)
    if not embedded:
        _require_known("Temporal", address, f"namespace {namespace!r} is {found}", plan.settings.temporal_id)
    plan.identified("temporal_id", found)
    await ensure_search_attributes(client)
    plan.say(f"temporal ready at {address}" + (f", web UI {plan.stack.temporal_ui}" if plan.stack.temporal_ui else ""))


async def _our_temporal(plan: Plan) -> str:
    """It answers, and it is our process that does: another one may have taken the port a moment ago."""
    why = await ready.temporal(plan.stack.temporal_address, plan.stack.namespace)
    port = plan.settings.ports[TEMPORAL]
    if not why and not ready.listens(plan.supervisor.states()[TEMPORAL].pid, port):
        why = f"port {port} is taken by another process"
    return why


def _require_known(what: str, address: str, found: str, expected: str) -> None:
    if expected and expected not in found:
        raise another_stacks(what, address, found, expected)


async def _start_workers(plan: Plan) -> None:
    """All at once: they wait for nothing but what is up already."""
    if not plan.workers:
        return
    client = await connect(plan.stack.temporal_address, plan.stack.namespace)
    for worker in plan.workers:
        plan.supervisor.launch(plan.programs[worker.name])

    async def bring_up(worker: Worker) -> None:
        async def check() -> str:
            return await ready.polls(client, worker, plan.supervisor.states()[worker.name].since)

        await _wait(plan, worker.name, check)
        plan.say(f"{worker.name} ready")

    try:
        async with asyncio.TaskGroup() as group:
            for worker in plan.workers:
                group.create_task(bring_up(worker))
    except* FatalError as errors:
        raise errors.exceptions[0] from None


async def _bring_up(plan: Plan, part: str, check: ready.Check) -> None:
    plan.supervisor.launch(plan.programs[part])
    await _wait(plan, part, check)


async def _wait(plan: Plan, part: str, check: ready.Check) -> None:
    """Until the part answers. Raises `FatalError` with the end of its log when it gives up or is too slow."""
    starts: set[float] = set()
    while True:
        why = await check()
        if not why:
            return
        state = plan.supervisor.states()[part]
        starts.add(state.since)
        if state.state == "FATAL" or len(starts) > STARTS_TOLERATED:
            raise FatalError(f"{part} keeps exiting during startup ({why}).{_tail(plan.supervisor.log(part))}")
        if time.monotonic() > plan.deadline:
            limit = plan.request.start_timeout_s
            raise FatalError(f"{part} did not come up within {limit:.0f} s: {why}.{_tail(plan.supervisor.log(part))}")
        await asyncio.sleep(POLL_S)


async def _wait_external(what: str, option: str, address: str, check: ready.Check) -> None:
    deadline = time.monotonic() + EXTERNAL_TIMEOUT_S
    while why := await check():
        if time.monotonic() > deadline:
            raise Unreachable(
                f"{what} given with {option} did not answer within {EXTERNAL_TIMEOUT_S:.0f} s: {address}: {why}. "
                f"Check that it runs and the address is right, or pass {option} '' to start an embedded one"
            )
        await asyncio.sleep(POLL_S * 5)


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        lines = []
    shown = "\n".join(f"  | {line}" for line in lines)
    return f" Last lines of {log}:\n{shown}" if lines else f" Its log {log} is empty"
