"""Armed triggers: files under the stack's home by which the driver asks a process to end itself at a named point.

Promises: one armed trigger ends one process, whoever of several passes the point first (it is taken by a rename); what
fired says which part, which process and when, and is on disk before the process ends.
"""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from psrl.schemas.stack import stack_home

PART_VARIABLE = "PSRL_PART"


@dataclass(frozen=True)
class Fired:
    part: str
    pid: int
    at: float
    """Unix time."""


def folder(home: Path) -> Path:
    return home / "chaos"


HOLD = "hold"
HELD_S = 120.0
"""Longer than the driver takes to end a process that stands still at a point."""


def arm(home: Path, point: str, order: str = "end") -> None:
    """The next process that passes `point` ends itself, or with `HOLD` stands still there until it is ended."""
    place = folder(home)
    (place / "armed").mkdir(parents=True, exist_ok=True)
    (place / "fired").mkdir(exist_ok=True)
    (place / "fired" / point).unlink(missing_ok=True)
    written = place / "armed" / f".{point}"
    written.write_text(order)
    written.rename(place / "armed" / point)


def disarm(home: Path, point: str) -> None:
    (folder(home) / "armed" / point).unlink(missing_ok=True)


def fired(home: Path, point: str) -> Fired | None:
    try:
        return Fired(**json.loads((folder(home) / "fired" / point).read_text()))
    except FileNotFoundError:
        return None


def trip(point: str) -> None:
    """Called by a process that passes `point`. Does not return when the point is armed."""
    place = folder(stack_home())
    taken = place / "fired" / f"{point}.{os.getpid()}"
    try:
        (place / "armed" / point).rename(taken)
    except FileNotFoundError:
        return
    order = taken.read_text()
    mark = Fired(part=os.environ.get(PART_VARIABLE, ""), pid=os.getpid(), at=time.time())
    taken.write_text(json.dumps(vars(mark)))
    taken.rename(place / "fired" / point)
    if order == HOLD:
        time.sleep(HELD_S)
    os.kill(os.getpid(), signal.SIGKILL)
