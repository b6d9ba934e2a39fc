"""Runs as the CLI sees them: through Temporal while they live, through the store forever."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import Any
from urllib.parse import quote

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import ActivityError, ChildWorkflowError, FailureError, TerminatedError
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.errors import Refused, RunUnknown, Unreachable, UserError, nearest, one_line
from ...schemas.messages.run import RunPhase, RunResult, RunStatus
from ...schemas.silence import why_silent
from ...schemas.stack import Stack
from ..process import connect_to

ENDED = (RunPhase.STOPPED, RunPhase.DONE, RunPhase.FAILED)
ENDING = (RunPhase.STOPPING, *ENDED)
"""In these a run that is still alive in Temporal only puts things in order: it heeds no `pause` and no `resume`."""
CONNECT_TIMEOUT_S = 5.0
ADMISSION_S, ADMISSION_POLL_S = 20.0, 0.3
RPC_TIMEOUT = timedelta(seconds=10)
RUN_TYPE = "TrainingRun"
NO_WORKER = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
SILENT = (*NO_WORKER, RPCStatusCode.UNAVAILABLE, RPCStatusCode.UNKNOWN)
"""What the client itself says when nobody answers; of any other status the server is the author."""


@asynccontextmanager
async def temporal_of(stack: Stack, patience_s: float | None = None) -> AsyncIterator[Client]:
    """A client for the time of one command. Raises `Unreachable` when the server does not answer, then or later."""
    client = await connect_to(stack, patience_s or CONNECT_TIMEOUT_S, _quiet())
    try:
        yield client
    except RPCError as error:
        named = f"Temporal at {stack.temporal_address} (namespace {stack.namespace!r})"
        if error.status in SILENT:
            raise Unreachable(
                f"{named} did not answer: {why_silent(error)}. `psrl up` starts the stack, `psrl status` shows it"
            ) from error
        raise UserError(f"{named} refused the call: {one_line(error.message)}") from error


def web_address(stack: Stack, run_id: str) -> str:
    """The run's page in Temporal's web UI; empty when the UI is not known."""
    if not stack.temporal_ui:
        return ""
    return f"{stack.temporal_ui}/namespaces/{quote(stack.namespace)}/workflows/{quote(run_id, safe='')}"


@cache
def _quiet() -> Runtime:
    """Each repeated call is a warning of the client's, on the terminal: what matters of it is told by the commands."""
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="error")))


async def send(client: Client, run_id: str, signal: str, *arguments: object) -> None:
    """Raises `RunUnknown` when no run of this name is alive."""
    async with named(client, run_id):
        await client.get_workflow_handle(run_id).signal(signal, args=arguments, rpc_timeout=RPC_TIMEOUT)


async def status_of(handle: WorkflowHandle[Any, Any]) -> RunStatus:
    """Raises `Unreachable` when no orchestrator answers for the run."""
    answer: RunStatus = await _asked(handle, "status", RunStatus)
    return answer


async def ledger_of(handle: WorkflowHandle[Any, Any]) -> list[dict[str, Any]]:
    """Raises `Unreachable` when no orchestrator answers for the run."""
    answer: list[dict[str, Any]] = await _asked(handle, "ledger", list[dict[str, Any]])
    return answer


async def _asked(handle: WorkflowHandle[Any, Any], query: str, kind: type) -> Any:
    """An answer is computed by an orchestrator: Temporal alone has none."""
    try:
        return await handle.query(query, result_type=kind, rpc_timeout=RPC_TIMEOUT)
    except WorkflowQueryFailedError as error:
        raise RunUnknown(f"workflow {handle.id!r} is not a run: it does not answer {query!r}") from error
    except RPCError as error:
        if error.status in NO_WORKER:
            raise Unreachable(
                f"run {handle.id} did not answer within {RPC_TIMEOUT.total_seconds():.0f} s: no orchestrator picks up "
                "its tasks, or Temporal hangs. `psrl status` shows the parts, `psrl up` starts what is missing"
            ) from error
        raise


async def this_execution(client: Client, run_id: str) -> WorkflowHandle[Any, RunResult]:
    """The execution of now and those that continue it: not one of the same name that somebody starts after it, or that
    another server has."""
    described = await client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_TIMEOUT)
    return client.get_workflow_handle(run_id, run_id=described.run_id, result_type=RunResult)


async def is_running(client: Client, run_id: str) -> bool:
    """Raises `RunUnknown` for a name Temporal does not know."""
    async with named(client, run_id):
        found = await client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_TIMEOUT)
    return found.status is WorkflowExecutionStatus.RUNNING


async def living(client: Client, run_id: str) -> RunStatus | None:
    """The run's own answer; None when nothing of it is alive in Temporal. Raises `Unreachable` when no orchestrator
    answers for it."""
    handle = client.get_workflow_handle(run_id)
    try:
        described = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        return await status_of(handle) if described.status is WorkflowExecutionStatus.RUNNING else None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def until_admitted(client: Client, run_id: str) -> None:
    """Returns when the run has been admitted, or after `ADMISSION_S`: a large data set takes longer, and a detached run
    is not waited for. Raises `Refused` with the reason of a run that was not admitted."""
    handle = client.get_workflow_handle(run_id)
    deadline = time.monotonic() + ADMISSION_S
    while time.monotonic() < deadline:
        try:
            await asyncio.wait_for(handle.result(), ADMISSION_POLL_S)
        except TimeoutError:
            if (await status_of(handle)).phase is not RunPhase.ADMITTING:
                return
        except WorkflowFailureError as error:
            raise Refused(cause_of(error)) from error
        else:
            return


async def live_runs(client: Client) -> list[str]:
    query = f"WorkflowType = '{RUN_TYPE}' AND ExecutionStatus = 'Running'"
    return sorted([found.id async for found in client.list_workflows(query)])


@asynccontextmanager
async def named(client: Client, run_id: str) -> AsyncIterator[None]:
    """Around a call for a run that somebody named. Raises `RunUnknown`, with the names there are."""
    try:
        yield
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        alive = await live_runs(client)
        raise RunUnknown(
            f"no run {run_id!r} is running{nearest(run_id, alive)}; running now: {', '.join(alive) or 'none'}. "
            "`psrl status` lists finished ones too"
        ) from error


def cause_of(error: BaseException) -> str:
    """The message of the fault itself: the first below the layers of activities and child workflows that passed it on.
    What caused the fault in turn (an `OSError` under our `DataError`) says less: it names no key, file or line."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, TerminatedError):
            return f"it was terminated in Temporal ({current.message or 'no reason given'})"
        if isinstance(current, FailureError) and not isinstance(current, ActivityError | ChildWorkflowError):
            return current.message
        current = getattr(current, "cause", None)
    return str(error)
