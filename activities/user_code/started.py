"""What a process has started, to be ended with it. Used by `process.py` for a process of the user's code, and by that
process itself (`child.py`) when whoever asked it is gone.

Promise: also what left its process group is ended, as sandboxes do that start a session for what they run.
"""

import ctypes
import signal
from collections import defaultdict
from contextlib import suppress
from os import kill, killpg  # bound now: those who run a model's code take them out of `os`
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def keep_orphans() -> None:
    """From here on, what a child of this process leaves behind becomes this process's own child."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_all(pid: int) -> None:
    """Everything below the process, and the group that it leads. It may be the process that calls."""
    for one in _below(pid):
        with suppress(ProcessLookupError):
            kill(one, signal.SIGKILL)
    with suppress(ProcessLookupError):
        killpg(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile
                # The name before the last parenthesis may have blanks in it.
                children[int((entry / "stat").read_text().rpartition(")")[2].split()[1])].append(int(entry.name))
    found = [*children[pid]]
    for one in found:
        found += children[one]
    return found
