"""`psrl simulate`: what a run would do under other settings, in virtual time."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import UserError
from ...schemas.stack import load_stack
from .app import app, checked, say
from .out import check_out


@app.command()
def simulate(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SCENARIO.yaml] [KEY=VALUE...]", help="What is simulated, and keys over the file."),
    ] = None,
    more: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="'KEY=VALUE ...'", help="Compare with this too; may be given several times."),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Replay what this run did, from the store.", callback=checked)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a page with timelines there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Run ledger, dispatch and policies under virtual time, and compare configurations."""
    from ..simulate.compare import compare
    from ..simulate.page import render
    from ..simulate.read import read
    from ..simulate.table import as_text
    from ..simulate.trace import recorded_by
    from ..whole import write_whole

    if out is not None:
        check_out(out)
    texts = given or []
    file = Path(texts[0]) if texts and "=" not in texts[0] else None
    trace = recorded_by(load_stack(), run) if run is not None else None
    if file is None and trace is None:
        raise UserError("nothing to simulate; allowed: a scenario file, or --run with the name of a run")
    comparison = read(
        file, texts[1:] if file is not None else texts, more or [], trace.sections if trace is not None else None
    )
    if comparison.unread:
        say(f"no part in a simulation: {', '.join(comparison.unread)}", err=True)
    if trace is not None:
        say(trace.itself, err=as_json)
    compared = compare(comparison.scenarios)
    if as_json:
        typer.echo(json.dumps([one.as_data() for one in compared], indent=2))
    else:
        for line in as_text(compared):
            typer.echo(line)
    if out is not None:
        write_whole(render(compared), out)
        say(f"timelines: {out}", err=as_json)
