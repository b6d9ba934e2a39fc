"""One job on standard input, one line of JSON with what came of it on standard output.

Promise: it ends early, with all it runs, when its standard input closes or it gets SIGTERM: whoever asked is gone.
"""

import json
import os
import shutil
import signal
import sys
from typing import Any

from .job import Job
from .processes import DEATH_SIGNAL, SUBREAPER, end_descendants, prctl
from .walls import new_namespaces, own_root, up_loopback
from .watch import watched


def main() -> None:
    job = Job.read(sys.stdin.buffer.readline())
    if job.confined:
        _confined(job)
    else:
        _in_the_open(job)


def _confined(job: Job) -> None:
    new_namespaces()
    ours = os.getpid()
    first = os.fork()
    if first:
        _, status = os.waitpid(first, 0)
        sys.exit(1 if status else 0)
    # The first process of the namespace: with it the kernel ends all others, and the folder in memory is gone.
    try:
        prctl(DEATH_SIGNAL, signal.SIGKILL)
        if os.path.exists(f"/proc/{ours}"):
            own_root(job.disk_mb, job.readable)
            up_loopback()
            job.fill()
            _tell(watched(job))
        status = 0
    except BaseException as error:  # noqa: BLE001  (told to whoever asked, on standard error)
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        status = 1
    os._exit(status)


def _in_the_open(job: Job) -> None:
    prctl(SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        job.fill()
        _tell(watched(job))
    finally:
        end_descendants()
        shutil.rmtree(job.folder, ignore_errors=True)


def _tell(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)
