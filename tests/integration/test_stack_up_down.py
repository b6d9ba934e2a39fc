"""The local stack for real: PostgreSQL, Temporal, the coordinator and the gateway under the supervisor."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy.engine import make_url

from psrl.schemas.environment import PART_VARIABLE
from psrl.schemas.errors import FatalError, Unreachable, UserError
from psrl.schemas.stack import Stack, load_stack
from psrl.workers.coordinator.client import CoordinatorClient
from psrl.workers.semaphores import FOLDER
from psrl.workers.stack import ready, start, temporary
from psrl.workers.stack import up as stack_up
from psrl.workers.stack.orphans import stack_processes
from psrl.workers.stack.settings import UpRequest, load_settings
from psrl.workers.stack.supervision import Supervisor, socket_path
from psrl.workers.stack.up import down, up
from tests.support.child import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PARTS = ("postgres", "temporal", "coordinator")


def silent(line: str) -> None:
    return None


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "home"
    yield place
    down(place, silent)
    assert stack_processes(place) == []


def psrl(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "psrl.workers.cli.main", *arguments]
    environment = {**os.environ, "PSRL_HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def ask(home: Path, **more: object) -> UpRequest:
    return UpRequest(**{"home": home, "cwd": home.parent, "parts": PARTS, **more})  # type: ignore[arg-type]


def store(stack: Stack) -> psycopg.Connection:
    return psycopg.connect(stack.postgres_url.replace("+psycopg", ""), autocommit=True)


def wait_until(true: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_up_starts_the_parts_and_down_leaves_nothing(home: Path) -> None:
    parts = (*PARTS, "gateway")
    started = psrl(home, "up", "--parts", ",".join(parts))
    assert started.returncode == 0, started.stderr
    for line in (
        "postgres ready at",
        "temporal ready at",
        "web UI http://",
        "coordinator ready at",
        "gateway ready at http://",
    ):
        assert line in started.stdout
    status = psrl(home, "status")
    assert status.returncode == 0, status.stderr
    assert all(f"{part}: RUNNING" in status.stdout for part in parts)
    assert f"gateway: http://{load_stack(home).gateway_address}" in status.stdout
    assert "stopped in" in psrl(home, "down").stdout
    assert stack_processes(home) == []
    assert "nothing is running under" in psrl(home, "down").stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stack_in_the_foreground_ends_clean_at_ctrl_c(home: Path, signum: signal.Signals) -> None:
    command = [sys.executable, "-m", "psrl.workers.cli.main", "up", "--foreground", "--parts", ",".join(PARTS)]
    environment = {**os.environ, "PSRL_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    told = next(line for line in process.stdout if "Ctrl-C" in line or "error" in line)
    assert "Ctrl-C stops it" in told
    assert socket_path(home).exists()
    process.send_signal(signum)
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0, rest
    assert "stopped in" in rest
    assert stack_processes(home) == []
    assert not socket_path(home).exists()
    assert not list(home.rglob("*.pid")), "a process id that means nothing any more"


def test_a_stack_in_the_foreground_that_somebody_else_stops_ends_its_command(home: Path) -> None:
    command = [sys.executable, "-m", "psrl.workers.cli.main", "up", "--foreground", "--parts", "coordinator"]
    environment = {**os.environ, "PSRL_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert "Ctrl-C stops it" in next(line for line in process.stdout if "Ctrl-C" in line or "error" in line)
    assert psrl(home, "down").returncode == 0
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert rest == f"error: the stack under {home} has ended: `psrl down` was called, or its supervisor was killed\n"


async def test_data_and_ports_survive_a_restart_and_a_running_stack_is_left_alone(home: Path) -> None:
    first = await up(ask(home), silent)
    with store(first) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    pids = {name: state.pid for name, state in Supervisor(home).states().items()}
    assert await up(UpRequest(home=home, cwd=home.parent), silent) == first
    assert {name: state.pid for name, state in Supervisor(home).states().items()} == pids
    with pytest.raises(
        UserError, match=r"is running with different settings \(instances: 2 -> 3\); run `psrl down` first"
    ):
        await up(ask(home, instances=3), silent)
    down(home, silent)
    second = await up(UpRequest(home=home, cwd=home.parent), silent)
    assert second.postgres_url == first.postgres_url
    with store(second) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


async def test_a_part_that_dies_is_started_again(home: Path) -> None:
    stack = await up(ask(home, parts=("coordinator",)), silent)
    before = Supervisor(home).states()["coordinator"].pid
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: Supervisor(home).states()["coordinator"].pid not in (0, before))
    await up(UpRequest(home=home, cwd=home.parent), silent)
    async with CoordinatorClient(stack.coordinator_address) as client:
        assert (await client.fleet()).instances == ()


async def test_what_a_killed_supervisor_left_behind_is_ended_by_the_next_up(home: Path) -> None:
    await up(ask(home), silent)
    # One that ignores the kernel's signal at its parent's death, as a hung worker may.
    stubborn = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()",
        ],
        env={**os.environ, "PSRL_HOME": str(home), PART_VARIABLE: "rollout-0"},
        stdout=subprocess.PIPE,
    )
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    left, socket_left = _semaphore(home), _socket(home)
    os.kill(int((home / "run" / "supervisord.pid").read_text()), signal.SIGKILL)
    told: list[str] = []
    stack = await up(UpRequest(home=home, cwd=home.parent), told.append)
    assert any(line.startswith("stopped ") for line in told)
    assert not psutil.pid_exists(stubborn.pid)
    assert not left.exists()
    assert not socket_left.exists()
    left, socket_left = _semaphore(home), _socket(home)
    os.kill(int((home / "run" / "supervisord.pid").read_text()), signal.SIGKILL)
    down(home, silent)
    assert not left.exists()
    assert not socket_left.parent.exists()
    assert not socket_path(home).exists()
    assert not (home / "run" / "supervisord.pid").exists()
    stack = await up(UpRequest(home=home, cwd=home.parent), silent)
    stubborn.stdout.close()
    stubborn.wait()
    with store(stack) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


async def test_a_part_that_does_not_come_up_is_named_with_the_end_of_its_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (sys.executable, "-c", "print('the reason'); raise SystemExit(3)")
    monkeypatch.setattr(stack_up, "coordinator_command", lambda: broken)
    with pytest.raises(FatalError, match=r"(?s)coordinator keeps exiting during startup .*\| the reason"):
        await up(ask(home, parts=("coordinator",)), silent)
    assert stack_processes(home) == []


async def test_a_part_that_is_too_slow_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_up, "coordinator_command", lambda: ("sleep", "60"))
    with pytest.raises(FatalError, match="coordinator did not come up within 2 s"):
        await up(ask(home, parts=("coordinator",), start_timeout_s=2), silent)
    assert stack_processes(home) == []


def test_a_wanted_port_that_is_taken_is_refused_and_nothing_starts(home: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        refused = psrl(home, "up", "--parts", "temporal", "--port-temporal", str(port))
    assert refused.returncode == 1
    assert f"--port-temporal={port}: the port for temporal is taken" in refused.stderr
    assert stack_processes(home) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"postgres_url": "postgresql://u:p@127.0.0.1:{port}/x"},
            "PostgreSQL given with --postgres-url did not answer",
        ),
        ({"temporal_address": "127.0.0.1:{port}"}, "Temporal given with --temporal-address did not answer"),
    ],
)
async def test_an_existing_server_that_does_not_answer_is_named_with_what_to_do(
    home: Path, asked: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "EXTERNAL_TIMEOUT_S", 1.0)
    port = free_port()
    more = {key: value.format(port=port) for key, value in asked.items()}
    part = ("postgres",) if "postgres_url" in asked else ("temporal",)
    with pytest.raises(Unreachable, match=f"{said} within 1 s: .*{port}.*start an embedded one"):
        await up(ask(home, parts=part, **more), silent)
    kept = load_settings(home)
    assert kept is not None
    assert (kept.postgres_url, kept.temporal_address) == ("", ""), "a mistyped address must not stick"
    with pytest.raises(Unreachable, match=said):
        await up(ask(home, parts=part, **more), silent)
    assert load_settings(home) == kept


async def test_an_existing_server_that_takes_connections_and_says_nothing_is_given_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "EXTERNAL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(ready, "CALL_TIMEOUT_S", 1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"{address}: timed out"):
            await asyncio.wait_for(up(ask(home, parts=("temporal",), temporal_address=address), silent), 20)


async def test_existing_servers_are_used_and_prepared(home: Path, stack: Stack) -> None:
    request = ask(home, postgres_url=stack.postgres_url, temporal_address=stack.temporal_address)
    found = await up(request, silent)
    assert make_url(found.postgres_url) == make_url(stack.postgres_url)
    assert list(Supervisor(home).states()) == ["coordinator"]
    assert load_stack(home) == found


def _socket(home: Path) -> Path:
    """As vLLM leaves one."""
    place = temporary.folder(home) / "0b8f2cb4-98a3-4a5e-8b8c-6e2b7d5b0a51"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
    return place


def _semaphore(home: Path) -> Path:
    """As a worker of the stack leaves one when multiprocessing's tracker is killed with it."""
    code = (
        "import multiprocessing, os, pathlib, signal, sys; from psrl.workers.semaphores import name_ours; "
        "name_ours(pathlib.Path(sys.argv[1])); lock = multiprocessing.get_context('spawn').Lock(); "
        "print(lock._semlock.name, flush=True); os.killpg(0, signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, start_new_session=True)
    file = FOLDER / f"sem.{done.stdout.strip().removeprefix('/')}"
    assert file.exists(), done.stderr
    return file
