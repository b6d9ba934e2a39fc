"""The border between errors and the terminal: one clear line and an exit status, never a traceback for a fault we
foresaw."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from ...schemas.errors import PsrlError

INTERRUPTED = 130
"""What shells expect of a program that SIGINT ended."""


class Commands(TyperGroup):
    """The root of all commands; every one of them ends here when it fails."""

    def invoke(self, ctx: Any) -> Any:
        with one_clear_line():
            return super().invoke(ctx)


@contextmanager
def one_clear_line(status: int = 1) -> Iterator[None]:
    """A fault of ours, or of a file that is not there, not readable or not writable, ends the command with `status`."""
    try:
        yield
    except PsrlError as error:
        _end(str(error), status, error)
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read our output is gone; there is nobody to tell
            raise
        _end(_about_file(error), status, error)


def _about_file(error: OSError) -> str:
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{names}: {error.strerror}" if names and error.strerror else str(error)


def _end(told: str, status: int, error: Exception) -> None:
    typer.secho(f"error: {told}", err=True, fg=typer.colors.RED)
    raise typer.Exit(status) from error


def leave(ending: BaseException | None) -> None:
    """End this process with the status that `ending` carries, without taking the interpreter down: threads of
    Temporal's client may call into it at that moment and abort the process, and a command that did its work would
    end with status 134. Returns only when `ending` is no exit: its traceback is for Python to print."""
    if ending is not None and not isinstance(ending, SystemExit):
        return
    code = 0 if ending is None else ending.code
    if code is not None and not isinstance(code, int):
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # started without it
                stream.flush()
        except OSError:  # whoever read it is gone
            code = code or 1
    os._exit(code or 0)
