"""Commands that start a run and steer it. Each reads its arguments, calls one part, prints; heavy libraries are
imported inside the commands that need them, so that `psrl --help` answers at once."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ...schemas.stack import load_stack, stack_home
from .app import Overrides, RunName, app, interrupted, say
from .interrupts import interruptible


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The run's configuration.")],
    overrides: Overrides = None,
    run: Annotated[str | None, typer.Option(help="Name of the run; default: the file's, numbered if taken.")] = None,
    up: Annotated[bool, typer.Option(help="Start the stack when it is not up.")] = True,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start the run and return.")] = False,
) -> None:
    """Start a run and follow it."""
    from .train import checked_name, free_name, read_config, ready_stack, start_run

    values, parsed = read_config(config, overrides or [])
    if run is not None:
        checked_name(run)
    from .following import follow_to_end
    from .runs import temporal_of, until_admitted, web_address

    asked_for: list[str] = []

    async def start() -> str:
        stack = await ready_stack(parsed, stack_home(), up, say)
        async with temporal_of(stack) as client:
            name = run or await free_name(client, stack, config.stem)
            asked_for.append(name)
            await start_run(client, stack, name, values, parsed)
            if detach:
                await until_admitted(client, name)
            return name

    try:
        name = interruptible(start())
    except KeyboardInterrupt:
        begun = (f"while run {one} was starting; `psrl status` shows whether it did" for one in asked_for)
        interrupted(f"interrupted {next(begun, 'before the run started')}")
    stack = load_stack()
    address = web_address(stack, name)
    say(f"run {name} started" + (f": {address}" if address else ""))
    if detach:
        say(f"`psrl follow {name}` shows its progress")
        return
    follow_to_end(stack, name, Console(), say)


@app.command()
def follow(run: RunName) -> None:
    """Show a run's progress until it ends."""
    from .following import follow_to_end

    follow_to_end(load_stack(), run, Console(), say)


@app.command()
def pause(run: RunName) -> None:
    """Start no new group and no new step until `resume`; what is in flight is kept."""
    from .steer import pause_run

    say(asyncio.run(pause_run(load_stack(), run)))


@app.command()
def resume(
    run: RunName,
    accept_changed_data: Annotated[
        bool, typer.Option(help="Resume although the data files have changed: a new epoch begins with them.")
    ] = False,
) -> None:
    """Resume after `pause`, after `stop`, or after a failure that has been fixed."""
    from .resume import resume_run

    try:
        say(interruptible(resume_run(load_stack(), run, accept_changed_data, say)))
    except KeyboardInterrupt:
        interrupted(f"`psrl status {run}` shows whether run {run} was resumed")


@app.command()
def stop(
    run: RunName,
    now: Annotated[bool, typer.Option("--now", help="Abandon the step; `psrl resume` trains it first.")] = False,
) -> None:
    """Finish the step in progress, save a checkpoint, end the run. `psrl resume` resumes it later."""
    from .steer import stop_run

    say(asyncio.run(stop_run(load_stack(), run, now)))
