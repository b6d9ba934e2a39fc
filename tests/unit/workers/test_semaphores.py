"""Named semaphores of killed processes: those of a stack are removed, those of others are not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psrl.workers.semaphores import FOLDER, remove_left

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="semaphores are files on Linux only")

KILLED = """
import multiprocessing, os, signal, sys
from pathlib import Path
from psrl.workers.semaphores import name_ours

def child():
    lock = multiprocessing.get_context("spawn").Lock()
    print(lock._semlock.name, flush=True)
    signal.pause()

if __name__ == "__main__":
    name_ours(Path(sys.argv[1]))
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


def leave_semaphore(home: Path) -> Path:
    """Of a child of a worker of the stack under `home`; all was killed with it, multiprocessing's tracker too."""
    home.mkdir()
    script = home / "worker.py"
    script.write_text(KILLED)
    process = subprocess.Popen(
        [sys.executable, str(script), str(home)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    return FOLDER / f"sem.{name.removeprefix('/')}"


def test_semaphores_of_a_killed_stack_are_removed_and_those_of_another_are_not(tmp_path: Path) -> None:
    ours, theirs = leave_semaphore(tmp_path / "ours"), leave_semaphore(tmp_path / "theirs")
    try:
        assert ours.exists()
        assert theirs.exists()
        assert remove_left(tmp_path / "ours") == 1
        assert not ours.exists()
        assert theirs.exists()
    finally:
        assert remove_left(tmp_path / "theirs") == 1
    assert remove_left(tmp_path / "ours") == 0


def test_a_home_that_is_made_anew_at_the_same_place_is_another_stack(tmp_path: Path) -> None:
    left = leave_semaphore(tmp_path / "home")
    (tmp_path / "home").rename(tmp_path / "moved")
    (tmp_path / "home").mkdir()
    try:
        assert remove_left(tmp_path / "home") == 0
    finally:
        left.unlink()
