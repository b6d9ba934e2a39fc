"""The supervisor of a stack: supervisord, with a configuration of ours, spoken to over a Unix socket.

It restarts what dies and keeps one log per part. We decide the order of the start; it stops workers first, the store
last.
"""

import hashlib
import http.client
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ...schemas.environment import PART_VARIABLE
from ...schemas.errors import FatalError

SOCKET_LIMIT = 90
"""A Unix socket's path may have 107 bytes; supervisord binds to a name that is a process id longer."""
STOP_WAIT_S = 10
"""How long a part may take to end before it is killed."""
CALL_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 45.0
SUPERVISOR = "supervisord"
PID_FILE = f"{SUPERVISOR}.pid"
COMMENT = re.compile(r"\s[;#]")
VALUE_VARIABLE = "PSRL_SUPERVISED_"


@dataclass(frozen=True)
class Program:
    """One supervised process."""

    name: str
    command: tuple[str, ...]
    group: str
    """Stopped together; see `GROUPS`."""
    stop_signal: str = "TERM"
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of what all parts see."""


STORE, SERVICES, WORKERS = "store", "services", "workers"
GROUPS = {STORE: 100, SERVICES: 200, WORKERS: 300}
"""Priority: the highest is stopped first, so that nobody loses what it still writes to."""


@dataclass(frozen=True)
class ProgramState:
    name: str
    state: str
    """supervisord's word: RUNNING, STARTING, BACKOFF, STOPPED, FATAL …"""
    pid: int
    since: float
    """Unix time of the newest start."""


class Supervisor:
    """Of the stack under `home`, running or not."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.socket = socket_path(home)

    def log(self, part: str) -> Path:
        return self._home / "logs" / f"{part}.log"

    def start(self, programs: list[Program], cwd: Path, environment: dict[str, str]) -> None:
        """Start supervisord with every program stopped. It runs on in the background."""
        for folder in (self._home / "logs", self._home / "run", self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._home / "run" / "supervisord.conf"
        text, values = configuration(self._home, programs, cwd)
        file.write_text(text)
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(file)]
        given = {**environment, **values, PART_VARIABLE: SUPERVISOR}
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        deadline = time.monotonic() + STOP_WAIT_S
        while done.returncode == 0 and time.monotonic() < deadline:
            if self.answers():
                return
            time.sleep(0.05)
        log = self.log(SUPERVISOR)
        raise FatalError(f"supervisord did not start: {done.stdout}{done.stderr}. Its log: {log}")

    def answers(self) -> bool:
        try:
            self._call("getState")
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return False
        return True

    def states(self) -> dict[str, ProgramState]:
        infos = cast(list[dict[str, Any]], self._call("getAllProcessInfo"))
        return {
            str(info["name"]): ProgramState(info["name"], info["statename"], int(info["pid"]), float(info["start"]))
            for info in infos
        }

    def launch(self, program: Program) -> None:
        """Start one program unless it runs; returns at once."""
        if self.states()[program.name].state not in ("RUNNING", "STARTING", "BACKOFF"):
            self._call("startProcess", f"{program.group}:{program.name}", False)

    def shutdown(self) -> None:
        """Stop all programs, then supervisord; returns when its socket is silent."""
        self._call("shutdown")
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        while self.answers() and time.monotonic() < deadline:
            time.sleep(0.05)

    def remove_files(self) -> None:
        """Its socket and its process id, which a supervisor that is killed leaves. To be called when it has ended."""
        (self._home / "run" / PID_FILE).unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self._home / "run":
            with suppress(OSError):  # not there
                self.socket.parent.rmdir()

    def _call(self, method: str, *arguments: Any) -> Any:
        with xmlrpc.client.ServerProxy("http://supervisor", transport=_UnixTransport(self.socket)) as proxy:
            return getattr(proxy.supervisor, method)(*arguments)


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a Unix socket, with a time limit: supervisord's own transport has none."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = _UnixConnection(self._path)
        self._connection = (host, connection)
        return connection


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("supervisor")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CALL_TIMEOUT_S)
        self.sock.connect(str(self._path))


def socket_path(home: Path) -> Path:
    """Under the home, or where that is too long for a socket in the system's folder for temporary files."""
    direct = home / "run" / "supervisor.sock"
    if len(os.fsencode(direct)) <= SOCKET_LIMIT:
        return direct
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"psrl-{os.getuid()}-{digest}" / "supervisor.sock"


def configuration(home: Path, programs: list[Program], cwd: Path) -> tuple[str, dict[str, str]]:
    """supervisord.conf, and the environment variables that it asks for."""
    logs = home / "logs"
    sections = {
        "unix_http_server": {"file": str(socket_path(home)), "chmod": "0700"},
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
        "supervisord": {
            "logfile": str(logs / f"{SUPERVISOR}.log"),
            "pidfile": str(home / "run" / PID_FILE),
            "childlogdir": str(logs),
            "directory": str(cwd),
            **({"user": "root"} if os.geteuid() == 0 else {}),  # without it, a warning at every start
        },
    }
    for program in programs:
        sections[f"program:{program.name}"] = {
            "command": shlex.join(program.command),
            "environment": _variables({PART_VARIABLE: program.name, **program.environment}),
            "autostart": "false",
            "autorestart": "true",
            "startsecs": "1",
            "startretries": "20",
            "stopsignal": program.stop_signal,
            "stopwaitsecs": str(STOP_WAIT_S),
            "stopasgroup": "true",
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": str(logs / f"{program.name}.log").replace("%", "%%"),  # it looks for variables twice
            "stdout_logfile_maxbytes": "50MB",
            "stdout_logfile_backups": "1",
        }
    for group, priority in GROUPS.items():
        members = ",".join(program.name for program in programs if program.group == group)
        if members:
            sections[f"group:{group}"] = {"programs": members, "priority": str(priority)}
    variables: dict[str, str] = {}
    return "\n".join(_section(name, values, variables) for name, values in sections.items()), variables


def _variables(values: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in values.items())


def _section(name: str, values: dict[str, str], variables: dict[str, str]) -> str:
    lines = [f"{key} = {_value(value, variables)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: str, variables: dict[str, str]) -> str:
    """What would be taken for a comment, in whatever quotes, is given by the environment: people's folders have such
    names."""
    if not COMMENT.search(value):
        return value.replace("%", "%%")
    name = f"{VALUE_VARIABLE}{len(variables)}"
    variables[name] = value
    return f"%(ENV_{name})s"
