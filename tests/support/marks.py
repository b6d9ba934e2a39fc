"""The mark that whatever a test starts inherits in its environment, also as a daemon (`leftovers.py` looks for it)."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "STARTED_BY_TEST"
SHARED = "session"


@contextmanager
def for_the_session() -> Iterator[None]:
    """What is started here is no leftover of the test: a server of the session that a test starts again."""
    before = os.environ.get(MARK)
    if before is not None:
        os.environ[MARK] = f"{before.partition('/')[0]}/{SHARED}"
    try:
        yield
    finally:
        if before is not None:
            os.environ[MARK] = before


def end(mark: str, grace_s: float) -> list[str]:
    """Command lines of the processes with this mark that did not end by themselves."""
    deadline = time.monotonic() + grace_s
    while (found := [*marked(mark)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [f"{pid} {_command(pid)}" for pid in found]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}\0".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with suppress(OSError):  # it has ended
            if wanted in Path(f"/proc/{entry}/environ").read_bytes() and not _of_the_interpreter(int(entry)):
                yield int(entry)


def _of_the_interpreter(pid: int) -> bool:
    """`multiprocessing` starts one when it is first needed, for as long as this process lives."""
    return "multiprocessing.resource_tracker import main" in _command(pid) and _parent(pid) == os.getpid()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return ""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
