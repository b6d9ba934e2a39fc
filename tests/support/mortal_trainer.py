"""`python -m tests.support.mortal_trainer POINT`: the trainer's process, ended by its own SIGKILL at a named point.

At the points of a checkpoint, which is written beside everything else, it waits for a file `may-die` in the stack's
home: the test makes it when it has got the activity's answer.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from psrl.schemas.stack import HOME_VARIABLE
from psrl.workers.process import run_worker
from psrl.workers.trainer import checkpoint, checkpoints, publisher
from psrl.workers.trainer.main import main

POINTS: dict[str, tuple[Any, str]] = {
    "amid a checkpoint": (checkpoint, "_fingerprint"),
    "before the row of a checkpoint": (checkpoints.Checkpoints, "_record"),
    "between the bytes of a version and its row": (publisher, "publish_version"),
    "after the row of a version": (publisher, "retain"),
}
"""The process dies as it is about to call this."""


def die(*_: object) -> None:
    while "checkpoint" in sys.argv[1] and not (Path(os.environ[HOME_VARIABLE]) / "may-die").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    owner, name = POINTS[sys.argv[1]]
    setattr(owner, name, die)
    run_worker(main)
