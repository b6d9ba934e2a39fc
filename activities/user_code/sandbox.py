"""Programs that nobody trusts, such as the code in a model's answer, run with limits. Rewards and tools call `run`.

Promises: a program and all that it has started are ended when `run` returns, is cancelled or loses the process that
called it, and its folder is removed. It inherits no variable of the worker's environment. Time, memory, processes,
files and output are limited. Where the machine allows it, it also reaches no network, no other process (whose
environment it could read) and no files but its own and, to read, Python's and the system's.

It keeps mistakes and what training may come upon from doing harm. It is no wall against an attacker who knows a hole in
the kernel.
"""

import base64
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ...schemas.config.sandbox import SandboxLimits as Limits
from ...schemas.errors import UserCodeFailed
from ...schemas.text import MAX_SAID, first_line, named, storable
from .process import how
from .threads import call_in_thread

PYTHON = sys.executable
"""For `argv`: the worker's interpreter, whose packages a program can read."""
OURS = str(Path(__file__).parents[3])
"""Where `psrl` is imported from."""
CELL = f"import sys; sys.path.insert(0, {OURS!r}); from psrl.activities.user_code.cell.main import main; main()"
COMMAND = [sys.executable, "-I", "-S", "-c", CELL]
MARGIN_S = 30.0
"""Beyond the program's own time: to start the process that watches it, and to end what is left."""
BOX = "/box"
"""The folder of a program that is confined."""


class Ran(NamedTuple):
    """What became of a program."""

    exit: int
    """Negative for the signal that ended it."""
    stdout: str
    stderr: str
    killed_by: str
    """The limit that ended it: `time`, `cpu`, `memory` or `output`; empty for a program that ended by itself."""

    @property
    def timed_out(self) -> bool:
        return self.killed_by in ("time", "cpu")


async def run(
    argv: Sequence[str],
    *,
    files: Mapping[str, str | bytes] | None = None,
    stdin: str | bytes = "",
    limits: Limits | None = None,
    confined: bool | None = None,
) -> Ran:
    """Starts in a folder that holds `files`, by their paths. `confined`: None for where the machine allows it. Raises
    `UserCodeFailed` when the program cannot be started; how it ends is never an error."""
    for name in files or {}:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"file {name!r}; allowed: paths in the program's folder")
    job = {
        "argv": list(argv),
        "files": {name: _base64(content) for name, content in (files or {}).items()},
        "stdin": _base64(stdin),
        "readable": _readable(),
        **(limits or Limits()).model_dump(),
    }
    cell = _Cell()
    try:
        ran: Ran = await call_in_thread("sandbox", functools.partial(_run, cell, job, confined))
        return ran
    finally:
        cell.end()


@functools.cache
def unconfined() -> str:
    """Why no program can be confined on this machine; empty where they are. The first call takes a while and blocks."""
    return _refusal(confined=True)


@functools.cache
def unusable() -> str:
    """Why the worker's Python cannot be run without being confined; empty where it can. Blocks likewise."""
    return _refusal(confined=False)


def _refusal(*, confined: bool) -> str:
    nothing = {"argv": [PYTHON, "-I", "-S", "-c", ""], "files": {}, "stdin": "", "readable": _readable()}
    try:
        _run(_Cell(), {**nothing, **Limits().model_dump()}, confined)
    except UserCodeFailed as failure:
        return str(failure)
    return ""


class _Cell:
    """The process that watches the program, which ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def talk(self, job: bytes, limit_s: float) -> bytes:
        """What it says. Raises `UserCodeFailed`."""
        process = self._open()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        late = threading.Timer(limit_s, self.end)
        late.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(job)
                process.stdin.flush()
            # It stays open: a cell ends, with all it runs, when it closes.
            said, complaint = process.stdout.read(), process.stderr.read()
        finally:
            late.cancel()
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            process.stdout.close()
            process.stderr.close()
        if process.returncode or not said:
            why = complaint.decode(errors="replace").strip().rpartition("\n")[2] or how(process.returncode)
            raise UserCodeFailed(storable(f"the sandbox could not run it: {first_line(why)}", MAX_SAID))
        return said

    def end(self) -> None:
        """From any thread, with all it runs."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.terminate()

    def _open(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._ended:
                raise UserCodeFailed("the sandbox was ended before it began")
            try:
                self._process = subprocess.Popen(
                    COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    start_new_session=True,
                )
            except OSError as error:
                raise UserCodeFailed(f"no process could be started: {named(error)}") from error
            return self._process


def _run(cell: _Cell, job: dict[str, Any], confined: bool | None) -> Ran:
    if confined is None:
        confined = not unconfined()
    limit_s = job["wall_s"] + MARGIN_S
    if confined:
        return _ran(cell.talk(_line({**job, "confined": True, "folder": BOX}), limit_s))
    try:
        place = tempfile.TemporaryDirectory(prefix="psrl-sandbox-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserCodeFailed(f"the sandbox has no place for a folder: {named(error)}") from error
    with place as folder:
        return _ran(cell.talk(_line({**job, "confined": False, "folder": folder}), limit_s))


@functools.cache
def _readable() -> list[str]:
    """Where the interpreter and its packages are, under each name that they have."""
    places = (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, os.path.dirname(sys.executable))
    return sorted({name for place in places for name in (place, os.path.realpath(place))})


def _ran(said: bytes) -> Ran:
    told: dict[str, Any] = json.loads(said)
    out, err = (base64.b64decode(told[one]).decode(errors="replace") for one in ("stdout", "stderr"))
    return Ran(told["exit"], out, err, told["killed_by"])


def _line(job: dict[str, Any]) -> bytes:
    return json.dumps(job).encode() + b"\n"


def _base64(content: str | bytes) -> str:
    held = content.encode(errors="replace") if isinstance(content, str) else content
    return base64.b64encode(held).decode()
