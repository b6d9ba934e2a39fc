"""What a process has started, to be ended with it. Used by `process.py` for a process of the user's code, and by that
process itself (`child.py`) when whoever asked it is gone.

Promise: also what left its process group is ended, as sandboxes do that start a session for what they run.
"""

import signal
from contextlib import suppress
from os import kill, killpg  # bound now: those who run a model's code take them out of `os`

from .cell.processes import SUBREAPER, descendants, prctl


def keep_orphans() -> None:
    """From here on, what a child of this process leaves behind becomes this process's own child."""
    prctl(SUBREAPER, 1)


def end_with_all(pid: int) -> None:
    """Everything below the process, and the group that it leads. It may be the process that calls."""
    for one in descendants(pid):
        with suppress(ProcessLookupError):
            kill(one, signal.SIGKILL)
    with suppress(ProcessLookupError):
        killpg(pid, signal.SIGKILL)
