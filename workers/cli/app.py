"""The root of all commands: its options, what several commands share, and how they talk to a person."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ...schemas.environment import HOME_VARIABLE
from ...schemas.errors import UserError
from ...schemas.ids import RUN_ID_PATTERN, RUN_ID_RULE
from .boundary import INTERRUPTED, Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Asynchronous RL post-training in which every decision is a durable workflow step.",
)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Dotted keys, over the file.")]


def checked(name: str | None) -> str | None:
    if name is not None and not RUN_ID_PATTERN.fullmatch(name):
        raise typer.BadParameter(f"{name!r} is not a valid run id; allowed: {RUN_ID_RULE}")
    return name


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, which is its workflow id.", callback=checked)
]


@app.callback()
def _options(
    home: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            envvar=HOME_VARIABLE,
            help="Directory of the stack.",
            show_default=".psrl in this directory",
        ),
    ] = None,
) -> None:
    if home == "":  # of a shell variable that is not set; as a path it would be this directory
        raise UserError("--home is empty; allowed: a directory, or a path for a new one")
    if home is not None:
        os.environ[HOME_VARIABLE] = str(Path(home).absolute())


def interrupted(told: str) -> NoReturn:
    say(f"\n{told}")
    raise typer.Exit(INTERRUPTED)


def say(line: str, err: bool = False) -> None:
    typer.echo(line, err=err)
    (sys.stderr if err else sys.stdout).flush()
