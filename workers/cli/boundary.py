"""The border between our errors and the terminal: one clear line and exit code 1, never a traceback for a fault we
foresaw."""

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
