"""The folder for temporary files of a stack: its own, short enough for sockets, private, and gone afterwards."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from psrl.schemas.errors import UserError
from psrl.workers.stack import temporary


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The system's folder, as far as the tests go: theirs is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="t-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)


def a_home(place: Path) -> Path:
    place.mkdir(parents=True)
    return place


def test_a_socket_fits_however_long_the_home_and_goes_with_the_folder(tmp_path: Path, system: Path) -> None:
    home, other = a_home(tmp_path / ("x" * 100)), a_home(tmp_path / "other")
    for one in (home, other):
        temporary.make(one)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(temporary.folder(one) / str(uuid4())))
    assert temporary.folder(home).parent == system
    assert temporary.folder(home).stat().st_mode & 0o777 == 0o700
    temporary.make(home)
    assert len(list(temporary.folder(home).iterdir())) == 1, "a running stack keeps its sockets"
    temporary.remove(home)
    assert list(system.iterdir()) == [temporary.folder(other)]
    temporary.remove(home)


def test_it_is_found_again_when_the_system_has_another_folder(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary.make(tmp_path)
    made = temporary.folder(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    assert temporary.variables(tmp_path)["TMPDIR"] == str(made)
    temporary.remove(tmp_path)
    assert not made.exists()
    assert temporary.folder(tmp_path).parent == Path("/var/tmp")


def test_a_copy_of_a_home_does_not_take_the_folder_of_the_original(tmp_path: Path, system: Path) -> None:
    home = a_home(tmp_path / "home")
    temporary.make(home)
    shutil.copytree(home, tmp_path / "copy", symlinks=True)
    temporary.remove(tmp_path / "copy")
    assert temporary.folder(home).exists()


def test_a_system_folder_with_a_long_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(a_home(tmp_path / ("x" * 100))))
    assert temporary.folder(tmp_path).parent == Path("/tmp")


@pytest.mark.parametrize("what", ["owner", "link", "file"])
def test_a_place_that_is_not_ours_is_refused_and_left_alone(
    what: str, tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, target = temporary.folder(tmp_path), a_home(tmp_path / "target")
    (target / "precious").touch()
    if what == "owner":
        place.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: place.lstat().st_uid + 1)
    elif what == "link":
        place.symlink_to(target)
    else:
        place.touch()
    with pytest.raises(UserError, match=f"{place}.*(belongs to another user|File exists)"):
        temporary.make(tmp_path)
    temporary.remove(tmp_path)
    assert os.path.lexists(place)
    assert (target / "precious").exists()


def test_a_host_keeps_its_temporary_files_there_but_not_its_kernels(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    seen = temporary.variables(tmp_path)
    assert seen["TMPDIR"] == str(temporary.folder(tmp_path))
    assert Path(seen["TORCHINDUCTOR_CACHE_DIR"]).parent == system
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/srv/kernels")
    assert temporary.variables(tmp_path)["TORCHINDUCTOR_CACHE_DIR"] == "/srv/kernels"
