"""`psrl status`: a run, or the stack and all runs; as data first, as text from the data."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from temporalio.service import RPCError

from ...activities.store.engine import sync_engine
from ...schemas.errors import RunUnknown, Unreachable, one_line
from ...schemas.messages.run import RunPhase
from ...schemas.stack import Stack
from ...schemas.tables import Run
from ..report.make import load
from ..report.page import number
from ..report.summary import RunSummary
from ..stack.supervision import Supervisor
from .pending import troubled_calls
from .runs import client_of, explained, is_running, ledger_of, status_of, web_address

ENDED = (RunPhase.STOPPED, RunPhase.DONE, RunPhase.FAILED)


async def run_status(stack: Stack, run_id: str) -> dict[str, Any]:
    """A living run answers itself; of a finished one the store tells. Raises `RunUnknown`."""
    client = await client_of(stack)
    try:
        alive = await is_running(client, run_id)
    except RunUnknown:
        alive = False
    told: dict[str, Any]
    if alive:
        handle = client.get_workflow_handle(run_id)
        try:
            told = (await status_of(handle)).model_dump(mode="json", exclude={"schema_version"})
            told["buffers"] = await ledger_of(handle)
            told["calls"] = await troubled_calls(client, run_id)
        except RPCError as error:
            raise await explained(client, run_id, error) from error
    else:
        _, summary = load(stack, run_id)
        told = summary.model_dump(
            mode="json", include={"run_id", "phase", "reason", "steps", "total_steps", "reward_first", "reward_last"}
        )
        if summary.phase not in ENDED:
            told["note"] = (
                f"this is the last phase the store heard of; nothing of the run is alive in Temporal (was it "
                f"terminated there?). `psrl resume {run_id}` goes on"
            )
    told["web"] = web_address(stack, run_id)
    return told


def stack_status(stack: Stack) -> dict[str, Any]:
    """Parts and runs. Works also when parts are down: that is when people ask."""
    supervisor = Supervisor(stack.home)
    parts = (
        {name: f"{part.state} (pid {part.pid})" for name, part in supervisor.states().items()}
        if (supervisor.answers())
        else {}
    )
    return {"home": str(stack.home), "parts": parts, "web": stack.temporal_ui, "runs": _runs(stack)}


def as_text(told: dict[str, Any]) -> str:
    """`key: value` lines; nested mappings and lists of waits and buffers indented."""
    lines = []
    for key, value in told.items():
        if value in (None, "", [], {}) or (key == "waiting_for" and told.get("waits")):
            continue
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {inner}" for name, inner in value.items())]
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  {_inline(inner)}" for inner in value)]
        else:
            lines.append(f"{key}: {value}")
    return "\n".join(lines)


def wait_line(wait: dict[str, Any], now: datetime) -> str:
    """`step 3 to be trained · the trainer · for 12 s · at most 11:59:48 more, then the run fails`."""
    parts = [wait["what"], wait["owner"], f"for {_duration(now - datetime.fromisoformat(wait['since']))}"]
    if wait["deadline"]:
        left = _duration(datetime.fromisoformat(wait["deadline"]) - now)
        parts.append(f"at most {left} more" + (f", then {wait['otherwise']}" if wait["otherwise"] else ""))
    return " · ".join(parts)


def _duration(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    return f"{seconds} s" if seconds < 120 else str(timedelta(seconds=seconds))


def outcome_line(summary: RunSummary) -> str:
    """The one line that says what happened."""
    return (
        f"{summary.run_id} {summary.phase}: reward {number(summary.reward_first)} -> {number(summary.reward_last)} "
        f"(first and last ten steps), validation {number(summary.validation_before)} -> "
        f"{number(summary.validation_after)}, {summary.steps} steps in {summary.wall_s:.0f} s"
    )


def _runs(stack: Stack) -> dict[str, str]:
    engine = sync_engine(stack.postgres_url)
    try:
        with Session(engine) as session:
            found = session.execute(select(Run.run_id, Run.phase, Run.total_steps).order_by(Run.created_at))
            return {run_id: f"{phase}, {steps} steps" for run_id, phase, steps in found}
    except OperationalError as error:
        raise Unreachable(f"the store did not answer: {one_line(error.orig)}. `psrl up` starts the stack") from error
    finally:
        engine.dispose()


def _inline(value: Any) -> str:
    if isinstance(value, dict) and "owner" in value:
        return wait_line(value, datetime.now(UTC))
    return "  ".join(f"{key} {inner}" for key, inner in value.items()) if isinstance(value, dict) else str(value)
