"""What the kernel knows of processes, and what it is asked to do with them."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

DEATH_SIGNAL, DUMPABLE, SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 36, 38
MB = 1 << 20
KB_OF_MB = 1 << 10
DYING_S = 0.002

libc = ctypes.CDLL(None, use_errno=True)


def checked(returned: int, what: str) -> None:
    """Raises `OSError`."""
    if returned == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, value: int) -> None:
    checked(libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def end_descendants(leave: int = 0) -> None:
    """Also those that left the process group: orphans come to this process, which is their reaper. They are held
    before they are ended, so that none escapes by starting another. The exit status of `leave` remains to be read."""
    while found := [pid for pid in descendants() if pid != leave or not _is_zombie(pid)]:
        for which in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, which)
        time.sleep(DYING_S)
        for pid in found:
            if pid != leave:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def descendants(of: int | None = None) -> list[int]:
    """Of this process, or of another."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        children.setdefault(_parent(pid), []).append(pid)
    found, queue = [], [os.getpid() if of is None else of]
    while queue:
        of_one = children.get(queue.pop(), [])
        found.extend(of_one)
        queue.extend(of_one)
    return found


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def held_mb(of: list[int]) -> float:
    """Memory that no file on a disk can give back, shared or not: no limit of the kernel's counts what is shared. What
    a fork shares with its parent counts for both."""
    return sum(map(_held_kb, of)) / KB_OF_MB


def tasks_of(user: int) -> int:
    """Processes and threads of a user."""
    found = 0
    for pid in pids():
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == user:
                found += len(os.listdir(f"/proc/{pid}/task"))
    return found


def _held_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def _is_zombie(pid: int) -> bool:
    stat = _stat(pid)
    return not stat or stat[0] == "Z"


def _stat(pid: int) -> list[str]:
    """From its state on; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
