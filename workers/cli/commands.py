"""The commands. Each reads its arguments, calls one part, prints; the parts are in the other files.

Heavy libraries are imported inside the commands that need them: `psrl --help` answers at once.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from ...schemas.errors import Unreachable, UserError
from ...schemas.ids import RUN_ID_PATTERN, RUN_ID_RULE
from ...schemas.stack import HOME_VARIABLE, load_stack, stack_home
from .boundary import INTERRUPTED, Commands, one_clear_line
from .interrupts import interruptible

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Asynchronous RL post-training in which every decision is a durable workflow step.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at configuration.")
trajectory_app = typer.Typer(no_args_is_help=True, help="Look at trajectories.")
app.add_typer(config_app, name="config")
app.add_typer(trajectory_app, name="trajectory")

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Dotted keys, over the file.")]


def _checked(name: str | None) -> str | None:
    if name is not None and not RUN_ID_PATTERN.fullmatch(name):
        raise typer.BadParameter(f"{name!r} is no run's name; allowed: {RUN_ID_RULE}")
    return name


RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="The run's name, which is its workflow id.", callback=_checked)
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
        stack = await ready_stack(parsed, stack_home(), up, _say)
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
        begun = (f"while run {one} was started: `psrl status` shows whether it began" for one in asked_for)
        _interrupted(f"stopped {next(begun, 'before the run began')}")
    stack = load_stack()
    address = web_address(stack, name)
    _say(f"run {name} started" + (f": {address}" if address else ""))
    if detach:
        _say(f"`psrl follow {name}` shows it")
        return
    follow_to_end(stack, name, Console(), _say)


@app.command()
def follow(run: RunName) -> None:
    """Show a run's progress until it ends."""
    from .following import follow_to_end

    follow_to_end(load_stack(), run, Console(), _say)


@app.command()
def up(  # noqa: PLR0917 - one parameter per option
    instances: Annotated[int | None, typer.Option(help="Rollout instances; default 2, or as before.")] = None,
    parts: Annotated[str | None, typer.Option(help="Only these parts, comma-separated.")] = None,
    postgres_url: Annotated[str | None, typer.Option(help="Use this PostgreSQL, not an embedded one.")] = None,
    temporal_address: Annotated[str | None, typer.Option(help="Use this Temporal (host:port).")] = None,
    namespace: Annotated[str | None, typer.Option(help="Temporal namespace; default: default.")] = None,
    port_postgres: Annotated[int | None, typer.Option(help="Port for PostgreSQL.")] = None,
    port_temporal: Annotated[int | None, typer.Option(help="Port for Temporal.")] = None,
    port_temporal_ui: Annotated[int | None, typer.Option(help="Port for Temporal's web UI.")] = None,
    port_coordinator: Annotated[int | None, typer.Option(help="Port for the coordinator.")] = None,
    start_timeout_s: Annotated[float, typer.Option(help="How long all parts may take to come up.")] = 300.0,
    accept_changed_servers: Annotated[
        bool, typer.Option("--accept-changed-servers", help="Existing servers that are others than before are right.")
    ] = False,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop the stack at Ctrl-C.")] = False,
) -> None:
    """Start the local stack in the background."""
    from ..stack.parts import parse_parts
    from ..stack.settings import UpRequest
    from ..stack.up import up as start
    from .foreground import up_and_stay, up_line

    ports = {
        "postgres": port_postgres,
        "temporal": port_temporal,
        "temporal-ui": port_temporal_ui,
        "coordinator": port_coordinator,
    }
    request = UpRequest(
        home=stack_home(),
        cwd=Path.cwd(),
        instances=instances,
        parts=None if parts is None else parse_parts(parts),
        ports={name: port for name, port in ports.items() if port is not None},
        postgres_url=postgres_url,
        temporal_address=temporal_address,
        namespace=namespace,
        start_timeout_s=start_timeout_s,
        accept_changed_servers=accept_changed_servers,
    )
    try:
        interruptible(up_and_stay(request, _say) if foreground else start(request, _say))
    except KeyboardInterrupt:
        _interrupted("stopped while starting; nothing is left running")
    if not foreground:
        _say(up_line(request.home))


@app.command()
def down() -> None:
    """Stop every part of the local stack. Data stays."""
    from ..stack.up import down as stop_stack

    stop_stack(stack_home(), _say)


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Leave it out for the stack and all runs.", callback=_checked)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As data.")] = False,
) -> None:
    """Show a run, or the stack and all runs."""
    from . import status as views

    stack = load_stack()
    told = asyncio.run(views.stack_status(stack) if run is None else views.run_status(stack, run))
    trouble = told.get("trouble", "")
    typer.echo(json.dumps(told, indent=2) if as_json else views.as_text(told | {"trouble": ""}))
    if trouble:
        raise Unreachable(trouble)


@app.command()
def pause(run: RunName) -> None:
    """Start no new group and no new step until `resume`; what is in flight is kept."""
    _signal(run, "pause", f"run {run} pauses: no new group and no new step until `psrl resume {run}`")


@app.command()
def resume(
    run: RunName,
    accept_changed_data: Annotated[
        bool, typer.Option(help="Go on although the data files have changed: a new epoch begins with them.")
    ] = False,
) -> None:
    """Go on after `pause`, after `stop`, or after a failure that was repaired."""
    from .resume import resume_run

    _say(asyncio.run(resume_run(load_stack(), run, accept_changed_data)))


@app.command()
def stop(
    run: RunName,
    now: Annotated[bool, typer.Option("--now", help="Abandon the step; `psrl resume` trains it first.")] = False,
) -> None:
    """Finish the step in progress, save a checkpoint, end the run. `psrl resume` goes on later."""
    from ...schemas.messages.run import StopRun

    when = "now, without its step" if now else "after the step in progress"
    told = f"run {run} ends {when}; `psrl follow {run}` shows it, `psrl resume {run}` goes on later"
    _signal(run, "stop", told, StopRun(now=now))


@app.command()
def report(
    run: RunName,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, write no page.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where the page goes.")] = None,
    tensorboard: Annotated[Path | None, typer.Option(help="Write TensorBoard events under this directory.")] = None,
) -> None:
    """Write a page with the run's plots, from the store."""
    from ..report.make import load, page_path
    from ..report.page import facts_of, write_page

    stack = load_stack()
    rows, summary = load(stack, run)
    if tensorboard is not None:
        from ..report.tensorboard import write_events

        count = write_events(rows, tensorboard)
        _say(f"{count} values for TensorBoard in {tensorboard / run}", err=as_json)
    if as_json:
        typer.echo(summary.model_dump_json(indent=2))
        return
    file = out or page_path(stack, run)
    write_page(rows, summary, file)
    for name, value in facts_of(summary):
        typer.echo(f"{name:46} {value}")
    _say(f"report: {file}")


@app.command()
def audit(
    run: RunName,
    as_json: Annotated[bool, typer.Option("--json", help="As data.")] = False,
) -> None:
    """Prove from the store that the run kept its promises. Exit status: 0 it did, 1 it did not, 2 no audit."""
    from .audit import as_data, as_text, audit_run

    with one_clear_line(2):
        done = audit_run(load_stack(), run)
    typer.echo(json.dumps(as_data(done), indent=2) if as_json else as_text(done))
    if not done.ok:
        raise typer.Exit(1)


@config_app.command("show")
def config_show(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="As the input of `temporal workflow start`.")] = False,
) -> None:
    """Print the configuration in effect, every default written out."""
    from omegaconf import OmegaConf

    from .train import read_config

    _, parsed = read_config(config, overrides or [])
    effective = parsed.model_dump(mode="json")
    typer.echo(json.dumps({"config": effective}) if as_json else OmegaConf.to_yaml(effective).rstrip())


@config_app.command("docs")
def config_docs(
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
) -> None:
    """Describe every key, from the models."""
    from .config_docs import document

    if out is None:
        typer.echo(document(), nl=False)
    else:
        out.write_text(document(), encoding="utf-8")


@trajectory_app.command("show")
def trajectory_show(
    run: RunName,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="For example 12 or 000012.")],
    index: Annotated[int, typer.Argument(metavar="INDEX", help="Within the group, from 0.")],
) -> None:
    """Show one trajectory: its segments with their versions, the text, the reward."""
    from ...activities.store.reach import opened
    from .trajectory import find, lines

    stack = load_stack()
    with opened(stack.postgres_url, stack.store_id) as engine:
        shown = find(engine, run, group, index)
    for line in lines(shown):
        typer.echo(line)


def _signal(run: str, signal: str, done: str, *arguments: object) -> None:
    from .runs import send, temporal_of

    async def work() -> None:
        async with temporal_of(load_stack()) as client:
            await send(client, run, signal, *arguments)

    asyncio.run(work())
    _say(done)


def _interrupted(told: str) -> NoReturn:
    _say(f"\n{told}")
    raise typer.Exit(INTERRUPTED)


def _say(line: str, err: bool = False) -> None:
    typer.echo(line, err=err)
    (sys.stderr if err else sys.stdout).flush()
