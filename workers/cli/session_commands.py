"""Commands for sessions: conversations with agents, which talk to the gateway."""

import typer

from ...schemas.ids import RunId
from ...schemas.stack import load_stack
from .app import RunName, app

session_app = typer.Typer(no_args_is_help=True, help="Conversations with agents.")
app.add_typer(session_app, name="session")


@session_app.callback()
def _sessions() -> None:
    """So that the one command there is has a name."""


@session_app.command()
def token(run: RunName) -> None:
    """Print the token that opens the run's sessions at the gateway, and new ones."""
    from ...activities.sessions.access import run_token_now
    from ...activities.store.reach import opened

    stack = load_stack()
    with opened(stack.postgres_url, stack.store_id) as store:
        typer.echo(run_token_now(store, RunId(run)))
