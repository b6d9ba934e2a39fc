"""`psrl calibrate`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from .app import Overrides, app, say
from .out import check_out


@app.command()
def calibrate(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The configuration of the runs to come.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The cost model's file; entries of other engines in it stay.")] = Path(
        "cost_model.json"
    ),
    requests: Annotated[int | None, typer.Option(min=1, help="At most so many at once; default: all slots.")] = None,
) -> None:
    """Measure the engine and write what it costs, for routing by throughput."""
    from ...activities.data.model_dir import check_model
    from ..calibrate.calibrate import calibrate as run
    from ..calibrate.calibrate import read_entries, table, write_entry
    from .train import read_config

    _, parsed = read_config(config, overrides or [])
    check_out(out)
    read_entries(out)
    check_model(parsed)
    done = asyncio.run(run(parsed, requests, lambda line: say(line, err=True)))
    write_entry(out, done, parsed.model.path)
    for line in table(done.steps, done.fit.cost):
        typer.echo(line)
    say(f"fit error: {done.fit.mean_error:.1%} in the mean, {done.fit.worst_error:.1%} at worst")
    say(f"entry {done.entry} is in {out}")
