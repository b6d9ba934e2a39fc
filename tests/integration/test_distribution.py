"""Wheel and sdist are whole: everything that runs from the repository also runs from an installed package."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from psrl.activities.store.migrate import head

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
FOLDERS = ("schemas", "workflows", "activities", "workers", "migrations")
DATA_SUFFIXES = (".ini", ".mako", ".proto", ".pyi", ".html", ".yaml", ".yml")
IMPORTS = """
import importlib, pathlib, psrl
root = pathlib.Path(psrl.__file__).parent
assert root.is_relative_to({target!r}), root
for name in ("schemas.tables", "workflows.ledger", "activities.signatures", "workers.process", "migrations"):
    importlib.import_module(f"psrl.{{name}}")
from psrl.activities.store.migrate import head
print(head())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the committed and uncommitted files, and the wheel that was built from that sdist."""
    source = tmp_path_factory.mktemp("source")
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (source / name).symlink_to((ROOT / name).readlink())
            else:
                (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    # Without --wheel or --sdist, build makes the sdist first and then the wheel out of it.
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)], source)
    return out


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected_files() -> set[str]:
    """Every file of ours that a running program may need, by its name below `psrl/`."""
    listed = run(["git", "ls-files", *FOLDERS], ROOT).splitlines()
    return {name for name in listed if name.endswith((".py", *DATA_SUFFIXES)) and (ROOT / name).is_file()}


def test_the_wheel_holds_every_source_and_data_file(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"psrl/{name}" for name in expected_files()} <= names
    assert {"psrl/__init__.py", "psrl/py.typed", "psrl/migrations/alembic.ini"} <= names
    # A second top-level package would overwrite, or be overwritten by, packages of the same name.
    assert {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")} == {"psrl"}


def test_the_sdist_holds_every_source_and_data_file(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {f"src/psrl/{name}" for name in expected_files()} <= names
    assert {"pyproject.toml", "README.md"} <= names


def test_an_installed_wheel_imports_and_finds_its_migrations(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)
    code = IMPORTS.format(target=str(target))
    assert run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(target)).strip() == head()
