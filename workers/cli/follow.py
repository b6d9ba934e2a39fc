"""Follow a run until it ends: in place on a terminal, line by line otherwise. Detaching never touches the run."""

import asyncio
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.errors import NotOurs, RunUnknown, UserError
from ...schemas.messages.run import RunPhase, RunResult
from ...schemas.stack import Stack, load_stack
from .progress import Observer, View, now_line, step_line
from .runs import RPC_TIMEOUT, cause_of, this_execution

LOOK_S = 1.0
"""Between two looks: each costs the orchestrator two queries, some 10 ms of CPU."""


class RunFailed(Exception):
    """The run ended by an error; the message is its cause."""


async def follow(client: Client, stack: Stack, run_id: str, console: Console) -> RunResult:
    """Raises `RunFailed` with the run's own reason, `UserError` when the stack has other addresses now, `RunUnknown`
    when Temporal has lost the run."""
    observer = Observer(client, stack, run_id)
    ended = asyncio.create_task(_result(client, run_id))
    shown = InPlace(console) if console.is_terminal else Lines(console)
    try:
        with shown:
            while not ended.done():
                view = await observer.look()
                shown.show(view)
                if view.trouble:
                    _require_same_place(stack, run_id)
                await asyncio.wait([ended], timeout=LOOK_S)
            shown.show(await observer.look())
        return ended.result()
    finally:
        ended.cancel()
        await observer.close()


def _require_same_place(stack: Stack, run_id: str) -> None:
    """A port that somebody took while the stack was down is replaced at the next start: waiting here has no end."""
    now = load_stack(stack.home)
    if (now.temporal_address, now.postgres_url) != (stack.temporal_address, stack.postgres_url):
        raise UserError(f"the stack was restarted at other addresses; `psrl follow {run_id}` shows the run again")


def detached(run_id: str) -> str:
    """For people who pressed Ctrl-C."""
    return (
        f"detached; run {run_id} keeps running. `psrl follow {run_id}` shows it again, `psrl pause {run_id}` "
        f"and `psrl resume {run_id}` pause and resume it, `psrl stop {run_id}` ends it after the current step"
    )


async def _result(client: Client, run_id: str) -> RunResult:
    handle: WorkflowHandle[Any, RunResult] | None = None
    while True:
        try:
            handle = handle or await this_execution(client, run_id)
            return await handle.result()
        except WorkflowFailureError as error:
            raise RunFailed(cause_of(error)) from error
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and await _lost(client, run_id):
                raise RunUnknown(
                    f"Temporal no longer knows run {run_id}: it was deleted there, or Temporal's data are gone. "
                    f"`psrl status {run_id}` shows what the store knows"
                ) from error
            await asyncio.sleep(LOOK_S)  # Temporal restarts; the run is safe in its database
        except NotOurs:
            await asyncio.sleep(LOOK_S)  # ours is away, and what is there knows nothing of the run


async def _lost(client: Client, run_id: str) -> bool:
    """Our own server says so, and not another stack's that has its address for a while."""
    try:
        await client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_TIMEOUT)
    except NotOurs:
        return False
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


class Notes:
    """What admission has to say of the data, each once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def fresh(self, view: View) -> list[str]:
        found = [note for note in (view.status.notes if view.status else ()) if note not in self._told]
        self._told.update(found)
        return [f"note: {note}" for note in found]


class Lines:
    """One line per finished step, and one when the phase changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = ""
        self._notes = Notes()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *ended: object) -> None:
        return None

    def show(self, view: View) -> None:
        for note in self._notes.fresh(view):
            self._print(note)
        for step in view.fresh:
            self._print(step_line(step, view))
        phase = view.status.phase if view.status else ""
        about = view.trouble or phase
        # Between steps the phase says enough; before the first one people want to know what takes so long.
        if phase in {RunPhase.ADMITTING, RunPhase.STARTING}:
            about = now_line(view)
        if about and about != self._told:
            self._told = about
            self._print(now_line(view))

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class InPlace:
    """A bar, the newest step, and what the run waits for; redrawn."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._notes = Notes()

    def __enter__(self) -> "InPlace":
        self._live.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._live.__exit__(*ended)

    def show(self, view: View) -> None:
        for note in self._notes.fresh(view):
            self._live.console.print(Text(note))  # it stays, above what is redrawn
        status = view.status
        done, total = (status.step, status.total_steps) if status else (0, 0)
        newest = Text(step_line(view.recent[-1], view)) if view.recent else Text("no step finished yet")
        bar = ProgressBar(total=max(total, 1), completed=done, width=60)
        rows = Table.grid()
        for row in (bar, newest, Text(now_line(view), style="dim")):
            rows.add_row(row)
        self._live.update(rows)
