"""The trainer on a disk that is really full: nothing half-written stays, and room is all it takes to go on."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from psrl.activities.store.connections import sync_store
from psrl.activities.weights import room as room_module
from psrl.activities.weights.room import room
from psrl.schemas.errors import StorageFull
from psrl.schemas.ids import RunId
from psrl.workers.trainer.stages import Stages
from tests.support.trainer_lab import RUN, Lab

pytestmark = pytest.mark.integration

CALM = RunId("calm")
SIZE = 4 << 20
"""Of the disk, in bytes."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def lab(small_disk: Path, postgres_url: str, tiny_model_dir: Path) -> Iterator[Lab]:
    engine = sync_store(postgres_url)
    lab = Lab(small_disk, engine, tiny_model_dir)
    for run in (RUN, CALM):
        lab.fill(run)
    yield lab
    engine.dispose()


def fill(disk: Path, leave: int = 0) -> Path:
    """A file that takes all the room but `leave` bytes."""
    filler = disk / "filler"
    with filler.open("wb") as stream:
        stream.write(b"\0" * (shutil.disk_usage(disk).free - leave))
    return filler


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the room had gone after it was looked for, or were withheld by a quota: the write itself finds out."""
    usage = shutil.disk_usage(os.sep)._replace(free=SIZE)
    monkeypatch.setattr(room_module.shutil, "disk_usage", lambda _: usage)


def publish(stages: Stages, buffer: int) -> None:
    stages.publish(RUN, buffer)


def save(stages: Stages, buffer: int) -> None:
    stages.checkpoint(RUN, buffer, wait=True)


@pytest.mark.parametrize("quota", [False, True], ids=["told before writing", "found while writing"])
@pytest.mark.parametrize("write", [publish, save])
def test_a_full_disk_is_told_leaves_nothing_behind_and_costs_no_bit(
    lab: Lab, small_disk: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Stages, int], None], quota: bool
) -> None:
    stages = lab.life()
    stages.open(RUN)
    stages.update(RUN, 0)
    before = tree(small_disk)
    # Little room is left, so that small files fit and the large one is cut off in the middle.
    filler = fill(small_disk, leave=50_000)
    with monkeypatch.context() as patch:
        if quota:
            blind(patch)
        with pytest.raises(StorageFull, match=r"No space left on device: [\d,]+ bytes are needed, [\d,]+ are free"):
            write(stages, 0)
    filler.unlink()
    assert tree(small_disk) == before
    write(stages, 0)

    stages.publish(RUN, 0)
    stages.close(RUN)
    stages.publish(CALM, 0)
    assert lab.manifest(1).shards == lab.manifest(1, CALM).shards


@pytest.mark.parametrize("at_byte", range(0, 420_000, 60_000))
def test_a_disk_that_fills_up_at_any_point_of_a_checkpoint_keeps_the_one_before(
    lab: Lab, small_disk: Path, monkeypatch: pytest.MonkeyPatch, at_byte: int
) -> None:
    stages = lab.life()
    stages.checkpoint(RUN, 0, wait=True)
    stages.update(RUN, 1)
    before = tree(small_disk)
    fill(small_disk, leave=at_byte)
    blind(monkeypatch)
    try:
        stages.checkpoint(RUN, 1, wait=True)
    except StorageFull:
        assert [name for name in tree(small_disk) if name != "filler"] == before
    else:
        assert lab.step_folder(2).exists()
        assert at_byte > 200_000, "that little room cannot hold it"
    assert (lab.step_folder(1) / "COMMITTED").exists()


def test_other_failures_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), room(tmp_path / "new", 1):
        raise PermissionError(13, "Permission denied")
    assert (tmp_path / "new").is_dir()


def test_a_quota_is_told_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(StorageFull, match=os.strerror(122)), room(tmp_path, 1):
        raise OSError(122, os.strerror(122))
