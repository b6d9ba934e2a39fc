"""The border between our errors and the terminal: one clear line and exit code 1, never a traceback for a fault we
foresaw."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from ...schemas.errors import PsrlError


class Commands(TyperGroup):
    """The root of all commands; every one of them ends here when it fails."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PsrlError as error:
            typer.secho(f"error: {error}", err=True, fg=typer.colors.RED)
            raise typer.Exit(1) from error


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
            stream.flush()
        except OSError:  # whoever read it is gone
            code = code or 1
    os._exit(code or 0)
