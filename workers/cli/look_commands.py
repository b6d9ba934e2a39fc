"""Commands that look: at a run's results, its promises, one trajectory, and at configuration. Heavy libraries are
imported inside the commands that need them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import UserError
from ...schemas.stack import load_stack
from .app import Overrides, RunName, app, say
from .boundary import one_clear_line

config_app = typer.Typer(no_args_is_help=True, help="Look at configuration.")
trajectory_app = typer.Typer(no_args_is_help=True, help="Look at trajectories.")
app.add_typer(config_app, name="config")
app.add_typer(trajectory_app, name="trajectory")


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
        say(f"{count} values for TensorBoard in {tensorboard / run}", err=as_json)
    if as_json:
        typer.echo(summary.model_dump_json(indent=2))
        return
    file = out or page_path(stack, run)
    write_page(rows, summary, file)
    for name, value in facts_of(summary):
        typer.echo(f"{name:46} {value}")
    say(f"report: {file}")


@app.command()
def audit(
    run: RunName,
    as_json: Annotated[bool, typer.Option("--json", help="As data.")] = False,
) -> None:
    """Prove from the store that the run kept its promises. Exit status: 0 all hold, 1 a promise is broken, 2 the audit
    could not run."""
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


@config_app.command("import")
def config_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML, key=value or a shell script; - reads stdin.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file of --out.")] = False,
) -> None:
    """Translate a configuration of veRL or PSRL, saying for each key what became of it. Exit status: 1 if something has
    to be added before `psrl train` takes the result."""
    import os
    import sys

    from .importing.command import import_config

    if out is not None and out.exists() and not force:
        raise UserError(f"--out {out} exists; allowed: another name, or --force")
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig", errors="replace")
    imported = import_config(file, text, overrides or [], os.environ)
    for line in imported.told:
        say(line, err=out is None)
    if out is None:
        typer.echo(imported.text, nl=False)
    else:
        out.write_text(imported.text, encoding="utf-8")
    for fault in imported.faults:
        say(f"to do: {fault}", err=True)
    if imported.faults:
        raise typer.Exit(1)


@config_app.command("docs")
def config_docs(
    out: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    of_import: Annotated[bool, typer.Option("--import", help="The keys of veRL and PSRL instead.")] = False,
) -> None:
    """Describe every key, from the models."""
    from . import config_docs as ours
    from .importing import page as theirs

    text = theirs.document() if of_import else ours.document()
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


@trajectory_app.command("show")
def trajectory_show(
    run: RunName,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="For example 12 or 000012.")],
    index: Annotated[int, typer.Argument(metavar="INDEX", help="Within the group, from 0.")],
) -> None:
    """Show one trajectory as a conversation: turns, segments with their versions, text, forks, the reward."""
    from ...activities.store.reach import opened
    from .trajectory import find, lines

    stack = load_stack()
    with opened(stack.postgres_url, stack.store_id) as engine:
        shown = find(engine, run, group, index)
    for line in lines(shown):
        typer.echo(line)
