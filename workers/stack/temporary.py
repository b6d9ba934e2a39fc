"""A stack's own folder for temporary files, for its rollout hosts: vLLM leaves sockets and `vllm_dist_*` files behind,
also when it ends in order, under names that do not tell whose they were.

Made by `psrl up`; `psrl up` and `psrl down` remove it once no process of the stack lives. It lies in the system's
folder for temporary files and not under the home: the path of a socket may have 107 bytes, and a home can be longer.
"""

import getpass
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ...schemas.errors import UserError
from ..semaphores import name_of

PATH_LIMIT = 70
"""Leaves 37 bytes of a socket's path for what vLLM adds, a slash and a UUID."""


def folder(home: Path) -> Path:
    """Of this stack alone. In /tmp when the system's folder has a path that is too long. One that was made stays the
    same until it is removed, whatever `TMPDIR` says meanwhile."""
    name = name_of(home)
    with suppress(OSError):
        made = _link(home).readlink()
        if made.name == name:  # else of a home that this one is a copy of
            return made
    system = Path(tempfile.gettempdir()) / name
    return system if len(os.fsencode(system)) <= PATH_LIMIT else Path("/tmp", name)


def make(home: Path) -> None:
    """For this user only. Raises `UserError` when somebody else has taken the folder."""
    directory = folder(home)
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {directory}, for temporary files of the stack: {error}") from error
    if not _ours(directory):
        raise UserError(f"{directory} is for temporary files of this stack, but belongs to another user: remove it")
    directory.chmod(0o700)
    link = _link(home)
    link.parent.mkdir(mode=0o700, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(directory)


def remove(home: Path) -> None:
    """With all that is in it. To be called while no process of the stack lives."""
    if _ours(folder(home)):
        shutil.rmtree(folder(home), ignore_errors=True)
    _link(home).unlink(missing_ok=True)


def variables(home: Path) -> dict[str, str]:
    """What the environment of a rollout host says. Compiled kernels stay where they were: the next stack uses them."""
    kernels = Path(tempfile.gettempdir()) / f"torchinductor_{_user()}"
    return {
        "TMPDIR": str(folder(home)),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(kernels),
    }


def _link(home: Path) -> Path:
    return home / "run" / "tmp"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return f"uid_{os.getuid()}"


def _ours(directory: Path) -> bool:
    try:
        there = directory.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
