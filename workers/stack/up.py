"""`psrl up` and `psrl down`.

Promises: `up` returns when every part answers, or raises naming the part that did not and the last lines of its log,
and then leaves nothing running that it started; `down` leaves no process of the stack, and may be repeated. One
directory holds everything.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...schemas.errors import UserError
from ...schemas.stack import ADDRESSES, Stack, described_by_environment
from ..semaphores import remove_left
from . import temporary
from .orphans import end_processes
from .parts import (
    COORDINATOR,
    GATEWAY,
    POSTGRES,
    TEMPORAL,
    coordinator_command,
    dies_with_supervisor,
    environment,
    gateway_command,
    workers,
)
from .ports import TEMPORAL_UI, choose_ports, is_free
from .postgres import find_postgres
from .settings import Settings, UpRequest, forget_servers, load_settings, merge, save
from .start import Plan, Say, start
from .supervision import SERVICES, STORE, WORKERS, Program, Supervisor
from .temporal import temporal_command

LOOK_S = 0.3


async def up(request: UpRequest, say: Say) -> Stack:
    """Start the stack, or what is missing of it."""
    _require_local("up")
    home = request.home
    home.mkdir(parents=True, exist_ok=True)
    with _only_one(home):
        before, supervisor = load_settings(home), Supervisor(home)
        settings = merge(request, before)
        running = supervisor.answers()
        if running:
            settings = _same(settings, before, request)
            if taken := _taken_ports(supervisor, settings):
                say(
                    f"another process has taken the port of {' and '.join(taken)}: restarting the stack on another port"
                )
                _end(home)
                running = False
        if not running:
            left = _end_what_is_left(home)
            if left:
                say(f"stopped {left} processes left behind by an earlier stack")
            ports = choose_ports(request.ports, settings.ports, settings.port_names, say)
            settings = settings.model_copy(update={"ports": ports})
        deadline = time.monotonic() + request.start_timeout_s
        stack = save(settings, home)
        ours = workers(settings.embedded, stack.instances)
        plan = Plan(request, settings, stack, supervisor, {}, say, deadline, ours)
        plan.programs = {program.name: program for program in _programs(plan)}
        try:
            temporary.make(home)
            if not running:
                supervisor.start(list(plan.programs.values()), settings.cwd, environment(home, settings.cwd))
            await start(plan)
        except BaseException:
            if not running:
                _end(home)  # half a stack helps nobody; the logs stay
                forget_servers(plan.settings, before, home)
            raise
        return plan.stack


def down(home: Path, say: Say) -> None:
    """Stop every process of the stack."""
    _require_local("down")
    if not home.exists():
        say(f"no stack under {home}")
        return
    with _only_one(home):
        began = time.monotonic()
        ended = _end(home)
        say(f"stopped in {time.monotonic() - began:.1f} s" if ended else f"nothing is running under {home}")


def _require_local(command: str) -> None:
    if described_by_environment():
        raise UserError(
            f"`psrl {command}` is for a local stack, but the environment describes one that others run; unset "
            f"{', '.join(ADDRESSES)}"
        )


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
    if GATEWAY in settings.embedded:
        found.append(Program(GATEWAY, dies_with_supervisor(gateway_command()), WORKERS))
    for worker in plan.workers:
        own = temporary.variables(home) if worker.name in plan.stack.instances else {}
        found.append(Program(worker.name, dies_with_supervisor(worker.command), WORKERS, environment=own))
    return found


def _same(settings: Settings, before: Settings | None, request: UpRequest) -> Settings:
    """A running stack keeps its settings; raises `UserError` when others are asked for."""
    if before is None:
        raise UserError(f"a stack is running under {request.home} but its settings are gone; run `psrl down` first")
    ids = {"temporal_id": before.temporal_id, "store_id": before.store_id}
    wanted = settings.model_copy(update={"cwd": before.cwd, "ports": {**before.ports, **request.ports}, **ids})
    changed = [
        f"{key}: {_shown(getattr(before, key))} -> {_shown(getattr(wanted, key))}"
        for key in Settings.model_fields
        if getattr(wanted, key) != getattr(before, key)
    ]
    if changed:
        raise UserError(
            f"the stack under {request.home} is running with different settings ({'; '.join(changed)}); run "
            "`psrl down` first"
        )
    return settings.model_copy(update={"cwd": before.cwd})


def _taken_ports(supervisor: Supervisor, settings: Settings) -> list[str]:
    """Our servers that are down and cannot come back, because somebody has their port. Looked at twice: a server of
    ours that was just restarted has its port too."""
    owners = {TEMPORAL_UI: TEMPORAL}
    for pause_s in (LOOK_S, 0):
        busy = [name for name in settings.port_names if not is_free(settings.ports[name])]
        states = supervisor.states()
        taken = [name for name in busy if not states[owners.get(name, name)].pid]
        if not taken:
            return []
        time.sleep(pause_s)
    return taken


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


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """One `up` or `down` at a time under one home."""
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another `psrl up` or `psrl down` is at work under {home}; wait for it") from error
        yield
