"""The command line as a person uses it, on a stack of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psrl.workers.stack.up import down

REPOSITORY = Path(__file__).parents[2]


def psrl(home: Path, *arguments: str, timeout_s: float = 400) -> str:
    """What the command prints; fails with all it said when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "psrl.workers.cli.main", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PSRL_HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running_stack(home: Path, instances: int = 1) -> Iterator[Path]:
    """All of its processes are gone afterwards."""
    psrl(home, "up", "--instances", str(instances))
    try:
        yield home
    finally:
        down(home, lambda line: None)
