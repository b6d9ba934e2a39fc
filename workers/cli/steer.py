"""`psrl pause` and `psrl stop`: a signal, and what became of it. A run that is ending heeds no pause."""

from temporalio.client import Client

from ...schemas.errors import NotOurs, Unreachable, UserError
from ...schemas.messages.run import StopRun
from ...schemas.stack import Stack
from .runs import ENDING, living, send, temporal_of

LATER = "no orchestrator answers now: it takes effect when one does"


async def pause_run(stack: Stack, run_id: str) -> str:
    """Returns what to tell. Raises `RunUnknown`, or `UserError` when the run is ending."""
    async with temporal_of(stack) as client:
        await send(client, run_id, "pause")
        known, ending = await _ending(client, run_id)
    if ending:
        raise UserError(
            f"run {run_id} is ending and cannot be paused; `psrl resume {run_id}` waits for its end and resumes it"
        )
    told = f"run {run_id} is pausing: no new group and no new step until `psrl resume {run_id}`"
    return told if known else f"{told}; {LATER}"


async def stop_run(stack: Stack, run_id: str, now: bool) -> str:
    """Returns what to tell. Raises `RunUnknown`."""
    async with temporal_of(stack) as client:
        await send(client, run_id, "stop", StopRun(now=now))
        known, _ = await _ending(client, run_id)
    when = "now, abandoning its step" if now else "after the step in progress"
    told = f"run {run_id} stops {when}; `psrl follow {run_id}` shows it, `psrl resume {run_id}` resumes it later"
    return told if known else f"{told}; {LATER}"


async def _ending(client: Client, run_id: str) -> tuple[bool, bool]:
    """(whether an orchestrator has said so, whether the run is ending or has ended)."""
    try:
        status = await living(client, run_id)
    except NotOurs:
        raise
    except Unreachable:
        return False, False
    return True, status is None or status.phase in ENDING
