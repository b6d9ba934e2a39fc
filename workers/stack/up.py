"""`psrl up` and `psrl down`.

Promises: `up` returns when every part answers, or raises naming the part that did not and the last lines of its log,
and then leaves nothing running that it started; `down` leaves no process of the stack, and may be repeated. One
directory holds everything.
"""

import asyncio
import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from ...activities.store.migrate import upgrade
from ...schemas.errors import FatalError, Unreachable, UserError, one_line
from ...schemas.stack import Stack
from ..process import connect
from ..semaphores import remove_left
from . import ready, temporary
from .orphans import end_processes
from .parts import (
    COORDINATOR,
    POSTGRES,
    TEMPORAL,
    Worker,
    coordinator_command,
    dies_with_supervisor,
    environment,
    workers,
)
from .ports import TEMPORAL_UI, choose_ports
from .postgres import find_postgres
from .settings import DATABASE, Settings, UpRequest, forget_servers, load_settings, merge, save
from .supervision import SERVICES, STORE, WORKERS, Program, Supervisor
from .temporal import ensure_search_attributes, temporal_command

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

    @property
    def workers(self) -> list[Worker]:
        return workers(self.settings.embedded, self.stack.instances)


async def up(request: UpRequest, say: Say) -> Stack:
    """Start the stack, or what is missing of it."""
    home = request.home
    home.mkdir(parents=True, exist_ok=True)
    with _only_one(home):
        before, supervisor = load_settings(home), Supervisor(home)
        settings = merge(request, before)
        running = supervisor.answers()
        if running:
            settings = _same(settings, before, request)
        else:
            left = _end_what_is_left(home)
            if left:
                say(f"ended {left} processes that an earlier stack left behind")
            ports = choose_ports(request.ports, settings.ports, settings.port_names, say)
            settings = settings.model_copy(update={"ports": ports})
        deadline = time.monotonic() + request.start_timeout_s
        plan = Plan(request, settings, save(settings, home), supervisor, {}, say, deadline)
        plan.programs = {program.name: program for program in _programs(plan)}
        try:
            temporary.make(home)
            if not running:
                supervisor.start(list(plan.programs.values()), settings.cwd, environment(home, settings.cwd))
            await _start(plan)
        except BaseException:
            if not running:
                _end(home)  # half a stack helps nobody; the logs stay
                forget_servers(settings, before, home)
            raise
        return plan.stack


def down(home: Path, say: Say) -> None:
    """Stop every process of the stack."""
    if not home.exists():
        say(f"no stack under {home}")
        return
    with _only_one(home):
        began = time.monotonic()
        ended = _end(home)
        say(f"stopped in {time.monotonic() - began:.1f} s" if ended else f"nothing runs under {home}")


async def _start(plan: Plan) -> None:
    """In order of dependence: each part finds what it needs when it starts."""
    await _start_store(plan)
    await _start_temporal(plan)
    if COORDINATOR in plan.settings.embedded:
        await _bring_up(plan, COORDINATOR, partial(ready.coordinator, plan.stack.coordinator_address))
        plan.say(f"coordinator ready at {plan.stack.coordinator_address}")
    await _start_workers(plan)


async def _start_store(plan: Plan) -> None:
    if POSTGRES not in plan.settings.parts:
        return
    url = plan.stack.postgres_url
    if POSTGRES in plan.settings.embedded:
        await _bring_up(plan, POSTGRES, partial(ready.postgres, url, "postgres"))
        await ready.ensure_database(url, DATABASE)
    else:
        address = make_url(url).render_as_string()  # without its password
        await _wait_external("PostgreSQL", "--postgres-url", address, partial(ready.postgres, url))
    try:
        await asyncio.to_thread(upgrade, url)
    except SQLAlchemyError as error:
        said = one_line(getattr(error, "orig", error))  # without the statement and a link to SQLAlchemy's pages
        raise UserError(f"the store at {make_url(url).render_as_string()} cannot be migrated: {said}") from error
    where = f"127.0.0.1:{plan.settings.ports[POSTGRES]}" if POSTGRES in plan.settings.embedded else "the given address"
    plan.say(f"postgres ready at {where}, schema up to date")


async def _start_temporal(plan: Plan) -> None:
    if TEMPORAL not in plan.settings.parts:
        return
    address, namespace = plan.stack.temporal_address, plan.stack.namespace
    check = partial(ready.temporal, address, namespace)
    if TEMPORAL in plan.settings.embedded:
        await _bring_up(plan, TEMPORAL, check)
    else:
        await _wait_external("Temporal", "--temporal-address", address, check)
    await ensure_search_attributes(await connect(address, namespace))
    plan.say(f"temporal ready at {address}" + (f", web UI {plan.stack.temporal_ui}" if plan.stack.temporal_ui else ""))


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
            raise FatalError(f"{part} ends again and again while it starts ({why}).{_tail(plan.supervisor.log(part))}")
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
                f"Check that it runs and the address is right, or give {option} '': an embedded one is started then"
            )
        await asyncio.sleep(POLL_S * 5)


def _programs(plan: Plan) -> list[Program]:
    settings, home = plan.settings, plan.stack.home
    found = []
    if POSTGRES in settings.embedded:
        server = find_postgres(home)
        server.initialise(settings.postgres_password)
        found.append(Program(POSTGRES, server.command(settings.ports[POSTGRES]), STORE, stop_signal="INT"))
    if TEMPORAL in settings.embedded:
        command = temporal_command(home, settings.ports[TEMPORAL], settings.ports[TEMPORAL_UI], settings.namespace)
        found.append(Program(TEMPORAL, dies_with_supervisor(command), SERVICES))
    if COORDINATOR in settings.embedded:
        found.append(Program(COORDINATOR, dies_with_supervisor(coordinator_command()), SERVICES))
    for worker in plan.workers:
        own = temporary.variables(home) if worker.name in plan.stack.instances else {}
        found.append(Program(worker.name, dies_with_supervisor(worker.command), WORKERS, environment=own))
    return found


def _same(settings: Settings, before: Settings | None, request: UpRequest) -> Settings:
    """A running stack keeps its settings; raises `UserError` when others are asked for."""
    if before is None:
        raise UserError(f"a stack runs under {request.home} but its settings are gone; `psrl down` first")
    wanted = settings.model_copy(update={"cwd": before.cwd, "ports": {**before.ports, **request.ports}})
    changed = [
        f"{key}: {_shown(getattr(before, key))} -> {_shown(getattr(wanted, key))}"
        for key in Settings.model_fields
        if getattr(wanted, key) != getattr(before, key)
    ]
    if changed:
        raise UserError(
            f"the stack under {request.home} runs with other settings ({'; '.join(changed)}); run `psrl down` first"
        )
    return before


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value) or "our own"


def _end(home: Path) -> bool:
    supervisor = Supervisor(home)
    running = supervisor.answers()
    if running:
        supervisor.shutdown()
    return _end_what_is_left(home) > 0 or running


def _end_what_is_left(home: Path) -> int:
    """How many processes there were; what they had named in the system is gone too."""
    ended = end_processes(home)
    Supervisor(home).remove_files()
    remove_left(home)
    temporary.remove(home)
    return ended


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        lines = []
    shown = "\n".join(f"  | {line}" for line in lines)
    return f" The end of {log}:\n{shown}" if lines else f" Its log {log} is empty"


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """One `up` or `down` at a time under one home."""
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another `psrl up` or `psrl down` works under {home}; wait for it") from error
        yield
