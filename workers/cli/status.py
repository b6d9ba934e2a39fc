"""`psrl status`: a run, or the stack and all runs; as data first, as text from the data."""

from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.errors import PsrlError, RunUnknown
from ...schemas.stack import Stack, described_by_environment
from ...workflows.ledger import BufferState
from ..report.make import load
from ..report.page import number
from ..report.summary import RunSummary, averaged
from ..stack.supervision import Supervisor
from .listed import as_they_are, executions, stored_runs
from .pending import troubled_calls
from .runs import ENDED, cause_of, is_running, ledger_of, named, status_of, temporal_of, web_address


async def run_status(stack: Stack, run_id: str) -> dict[str, Any]:
    """A living run answers itself; of a finished one the store tells. Raises `RunUnknown` or `Unreachable`."""
    async with temporal_of(stack) as client:
        told = await _living(client, run_id)
        if told is None:
            try:
                told = _stored(stack, run_id)
            except RunUnknown:
                told = await _refused(client, run_id)
                if told is None:
                    raise
    told["web"] = web_address(stack, run_id)
    return told


def _stored(stack: Stack, run_id: str) -> dict[str, Any]:
    _, summary = load(stack, run_id)
    told = summary.model_dump(
        mode="json", include={"run_id", "phase", "reason", "steps", "total_steps", "reward_first", "reward_last"}
    )
    if summary.phase not in ENDED:
        told["note"] = (
            f"this is the last phase recorded in the store; nothing of the run is alive in Temporal (was it "
            f"terminated there?). `psrl resume {run_id}` resumes it"
        )
    return told


async def _refused(client: Client, run_id: str) -> dict[str, Any] | None:
    """Of a run that ended before it was in the store; None when Temporal has none of that name either."""
    try:
        await client.get_workflow_handle(run_id).result()
    except WorkflowFailureError as error:
        return {"run_id": run_id, "phase": "refused", "reason": cause_of(error)}
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    return None


async def _living(client: Client, run_id: str) -> dict[str, Any] | None:
    try:
        if not await is_running(client, run_id):
            return None
        handle = client.get_workflow_handle(run_id)
        async with named(client, run_id):  # it may end between two calls
            told = (await status_of(handle)).model_dump(mode="json", exclude={"schema_version"})
            told["buffers"] = await ledger_of(handle)
            told["calls"] = await troubled_calls(client, run_id)
    except RunUnknown:
        return None
    return told


async def stack_status(stack: Stack) -> dict[str, Any]:
    """Parts and runs. Works also when parts are down, as that is when people ask: what did not answer is `trouble`."""
    supervisor = Supervisor(stack.home)
    up = supervisor.answers()
    states = supervisor.states() if up else {}
    elsewhere = "described by the environment, run by others" if described_by_environment() else ""
    told: dict[str, Any] = {
        "home": str(stack.home),
        "stack": elsewhere or ("up" if up else "down: `psrl up` starts it"),
        "parts": {name: f"{part.state} (pid {part.pid})" for name, part in states.items()},
        "web": stack.temporal_ui,
        "gateway": stack.gateway_address and f"http://{stack.gateway_address}",
    }
    try:
        stored = stored_runs(stack)
    except PsrlError as error:
        return told | {"runs": {}, "trouble": str(error)}
    try:
        return told | {"runs": as_they_are(stored, await executions(stack, stored))}
    except PsrlError as error:
        last_words = {run.run_id: f"{run.phase}, {run.steps} steps" for run in stored}
        return told | {"runs": last_words, "trouble": f"these phases are the last ones recorded in the store: {error}"}


def as_text(told: dict[str, Any]) -> str:
    """`key: value` lines; nested mappings and lists of waits and buffers indented."""
    lines = []
    for key, value in told.items():
        if value in (None, "", [], {}) or (key == "waiting_for" and told.get("waits")):
            continue
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {name}: {_plain(inner)}" for name, inner in value.items())]
        elif isinstance(value, list):
            lines += [f"{key}:", *(f"  {_inline(inner)}" for inner in value)]
        else:
            lines.append(f"{key}: {value}")
    return "\n".join(lines)


def wait_line(wait: dict[str, Any], now: datetime) -> str:
    """`step 3 to be trained · the trainer · for 12 s · otherwise the run fails in 11:59:48`."""
    parts = [wait["what"], wait["owner"], f"for {_duration(now - datetime.fromisoformat(wait['since']))}"]
    if wait["deadline"]:
        left = _duration(datetime.fromisoformat(wait["deadline"]) - now)
        parts.append(f"otherwise {wait['otherwise']} in {left}" if wait["otherwise"] else f"at most {left} more")
    return " · ".join(parts)


def _duration(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    return f"{seconds} s" if seconds < 120 else str(timedelta(seconds=seconds))


def outcome_line(summary: RunSummary) -> str:
    """The one line that says what happened."""
    return (
        f"{summary.run_id} {summary.phase}: reward {number(summary.reward_first)} -> {number(summary.reward_last)} "
        f"({averaged(summary.steps)}), validation {number(summary.validation_before)} -> "
        f"{number(summary.validation_after)}, {summary.steps} steps in {summary.wall_s:.0f} s"
    )


def buffer_line(buffer: dict[str, Any]) -> str:
    """What the ledger's words mean: a STUCK buffer is no trouble, it waits for groups that are at work."""
    empty, unfinished, complete = buffer["empty"], buffer["reserved"], buffer["occupied"]
    if buffer["state"] in (BufferState.READY, BufferState.READY_WITH_CAPACITY):
        meaning = "ready to train on"
    elif buffer["state"] == BufferState.STUCK:
        meaning = f"waiting for unfinished groups: {unfinished} of {empty + unfinished + complete}"
    else:
        meaning = "filling"
    return f"buffer {buffer['buffer']} · {complete} complete, {unfinished} unfinished, {empty} free · {meaning}"


def _plain(value: Any) -> str:
    """An instance that has loaded nothing is at version -1."""
    return str(value).replace(" v-1", ", no weights yet")


def _inline(value: Any) -> str:
    if isinstance(value, dict) and "reserved" in value:
        return buffer_line(value)
    if isinstance(value, dict) and "owner" in value:
        return wait_line(value, datetime.now(UTC))
    return "  ".join(f"{key} {inner}" for key, inner in value.items()) if isinstance(value, dict) else str(value)
