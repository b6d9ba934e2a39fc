"""Commands for sessions: conversations with agents, which talk to the gateway."""

import asyncio
from typing import Annotated

import typer

from ...schemas.ids import RunId
from ...schemas.stack import load_stack
from .app import RunName, app, say

session_app = typer.Typer(no_args_is_help=True, help="Conversations with agents.")
app.add_typer(session_app, name="session")

Name = Annotated[str, typer.Argument(metavar="SESSION", help="As `psrl session list` names it.")]
Reason = Annotated[str, typer.Option(help="Shown in the session's page and in its record.")]


@session_app.command("list")
def list_(
    run: RunName, closed: Annotated[bool, typer.Option("--all", help="Also those that are closed.")] = False
) -> None:
    """List the run's open sessions."""
    from .sessions import list_sessions

    for line in list_sessions(load_stack(), run, closed):
        typer.echo(line)


@session_app.command()
def show(run: RunName, session: Name) -> None:
    """Show one session: its state, and every turn with its versions and instances."""
    from .sessions import show_session

    for line in asyncio.run(show_session(load_stack(), run, session)):
        typer.echo(line)


@session_app.command()
def hang(run: RunName, session: Name, reason: Reason = "asked for by a person") -> None:
    """Start no further turn until `continue`. One in flight ends first."""
    from .sessions import hang_session

    say(asyncio.run(hang_session(load_stack(), run, session, reason)))


@session_app.command("continue")
def continue_(
    run: RunName,
    session: Name,
    instance: Annotated[str | None, typer.Option(help="Where the next turn begins, if there is room.")] = None,
) -> None:
    """End a hang, or take back one that waits for a turn in flight."""
    from .sessions import continue_session

    say(asyncio.run(continue_session(load_stack(), run, session, instance)))


@session_app.command()
def close(run: RunName, session: Name, reason: Reason = "asked for by a person") -> None:
    """Take no further turn. Those in flight may end within the drain limit."""
    from .sessions import close_session

    say(asyncio.run(close_session(load_stack(), run, session, reason)))


@session_app.command()
def token(run: RunName) -> None:
    """Print the token that opens the run's sessions at the gateway, and new ones."""
    from ...activities.sessions.access import run_token_now
    from ...activities.store.reach import opened

    stack = load_stack()
    with opened(stack.postgres_url, stack.store_id) as store:
        typer.echo(run_token_now(store, RunId(run)))
