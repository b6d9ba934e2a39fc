"""Child processes that cannot outlive the test session, also when that is killed hard."""

import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Runs as root at first, because a service user may not be allowed to read our interpreter; the signal is asked for
# after the change of user, which would clear it.
_WRAPPER = """
import ctypes, os, sys
user, death_signal, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if user:
    import pwd
    entry = pwd.getpwnam(user)
    os.setgroups([]); os.setgid(entry.pw_gid); os.setuid(entry.pw_uid)
    os.environ["HOME"] = "/"
ctypes.CDLL(None).prctl(1, death_signal)
if os.getppid() != parent:
    sys.exit("parent is gone")
os.execv(sys.argv[4], sys.argv[4:])
"""


def wrapped(command: Sequence[str], user: str, death_signal: signal.Signals) -> list[str]:
    """`command` as `user` (empty: unchanged), sent `death_signal` when the thread that starts it ends."""
    return [sys.executable, "-I", "-S", "-c", _WRAPPER, user, str(int(death_signal)), str(os.getpid()), *command]


def spawn(
    command: Sequence[str], log: Path, user: str = "", death_signal: signal.Signals = signal.SIGTERM
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(wrapped(command, user, death_signal), stdout=output, stderr=output, cwd=log.parent)


def stop(process: subprocess.Popen[bytes], signum: signal.Signals, timeout_s: float = 10) -> None:
    """Ask with `signum`, then kill; returns when the process is gone."""
    if process.poll() is None:
        process.send_signal(signum)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def service_user() -> str:
    """PostgreSQL refuses root: another user when we are root, else empty."""
    if os.geteuid() != 0:
        return ""
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
