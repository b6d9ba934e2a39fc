"""Commands for the stack and what runs on it. Heavy libraries are imported inside the commands that need them."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import Unreachable
from ...schemas.stack import load_stack, stack_home
from .app import app, checked, interrupted, say
from .interrupts import interruptible


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
    port_gateway: Annotated[int | None, typer.Option(help="Port for the gateway.")] = None,
    start_timeout_s: Annotated[float, typer.Option(help="How long all parts may take to come up.")] = 300.0,
    accept_changed_servers: Annotated[
        bool, typer.Option("--accept-changed-servers", help="Accept a server that was replaced on purpose.")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C stops the stack.")
    ] = False,
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
        "gateway": port_gateway,
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
        interruptible(up_and_stay(request, say) if foreground else start(request, say))
    except KeyboardInterrupt:
        interrupted("interrupted while starting; nothing is left running")
    if not foreground:
        say(up_line(request.home))


@app.command()
def down() -> None:
    """Stop every part of the local stack. Data stays."""
    from ..stack.up import down as stop_stack

    stop_stack(stack_home(), say)


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Leave it out for the stack and all runs.", callback=checked)
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
