"""Following a run on the terminal to its end, and what is told then."""

from collections.abc import Callable
from contextlib import suppress

import typer
from rich.console import Console

from ...schemas.errors import Unreachable
from ...schemas.messages.run import RunPhase
from ...schemas.stack import Stack
from ..report.make import load, page_path
from ..report.page import write_page
from .boundary import INTERRUPTED
from .follow import RunFailed, detached, follow
from .interrupts import interruptible
from .resume import in_store
from .runs import is_running, temporal_of, web_address
from .status import outcome_line

Say = Callable[[str], None]


def follow_to_end(stack: Stack, run: str, console: Console, say: Say) -> None:
    """Until the run ends; then one line that says what happened, the report, and where to look. Exits 1 when the run
    failed, 130 at Ctrl-C, which never touches the run."""

    async def work() -> None:
        async with temporal_of(stack) as client:
            await is_running(client, run)
            await follow(client, stack, run, console)

    try:
        interruptible(work())
    except KeyboardInterrupt:
        say(f"\n{detached(run)}")
        raise typer.Exit(INTERRUPTED) from None
    except RunFailed as error:
        told = f"error: run {run} failed: {error}"
        with suppress(Unreachable):  # the reason is told also when the store is away
            if in_store(stack, run):
                told += f"\nonce that is fixed, `psrl resume {run}` resumes it"
        typer.secho(told, err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from error
    _tell_end(stack, run, say)


def _tell_end(stack: Stack, run: str, say: Say) -> None:
    rows, summary = load(stack, run)
    file = page_path(stack, run)
    write_page(rows, summary, file)
    say(outcome_line(summary))
    if summary.phase == RunPhase.STOPPED:
        say(f"`psrl resume {run}` resumes it")
    say(f"report: {file}")
    if address := web_address(stack, run):
        say(f"web UI: {address}")
