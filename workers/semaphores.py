"""Named semaphores of a stack's processes: vLLM's engine process makes two, for a lock of its executor and for tqdm's.

The process that ends removes them, or `multiprocessing`'s tracker beside it does; when both are killed, the files stay
in /dev/shm and nothing tells whose they were. So every worker names its own after the stack, children included, and
`psrl up` and `psrl down` remove those of this name once no process of the stack lives. Others are never touched.
"""

import hashlib
import multiprocessing
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

FOLDER = Path("/dev/shm")
"""Where Linux shows them, with `sem.` before the name. Elsewhere they have no files, and nothing is removed."""


def name_ours(home: Path) -> None:
    """From now on, in this process and those it starts with `multiprocessing`."""
    process = cast(Any, multiprocessing.current_process())
    process._config["semprefix"] = f"/{name_of(home)}"


def remove_left(home: Path) -> int:
    """How many there were. To be called while no process of the stack lives."""
    removed = 0
    for file in FOLDER.glob(f"sem.{name_of(home)}-*"):
        with suppress(FileNotFoundError, PermissionError):  # gone meanwhile; another user's
            file.unlink()
            removed += 1
    return removed


def name_of(home: Path) -> str:
    """What a stack's things in the system are called. Of this folder alone: containers may share /dev/shm or /tmp and
    call their homes the same, but have them on devices of their own."""
    there = os.stat(home)
    identity = f"{there.st_dev}:{there.st_ino}:{home.resolve()}"
    return f"psrl-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
