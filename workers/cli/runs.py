"""Runs as the CLI sees them: through Temporal while they live, through the store for ever."""

import asyncio
import time
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError, ChildWorkflowError, FailureError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.errors import Refused, RunUnknown, Unreachable, nearest
from ...schemas.messages.run import RunPhase, RunStatus
from ...schemas.stack import Stack
from ..process import connect

CONNECT_TIMEOUT_S = 5.0
ADMISSION_S, ADMISSION_POLL_S = 20.0, 0.3
RPC_TIMEOUT = timedelta(seconds=10)
RUN_TYPE = "TrainingRun"


async def client_of(stack: Stack) -> Client:
    return await connect(stack.temporal_address, stack.namespace, CONNECT_TIMEOUT_S)


def web_address(stack: Stack, run_id: str) -> str:
    """The run's page in Temporal's web UI; empty when the UI is not known."""
    if not stack.temporal_ui:
        return ""
    return f"{stack.temporal_ui}/namespaces/{quote(stack.namespace)}/workflows/{quote(run_id, safe='')}"


async def send(stack: Stack, run_id: str, signal: str, *arguments: object) -> None:
    """Raises `RunUnknown` when no run of this name is alive."""
    client = await client_of(stack)
    try:
        await client.get_workflow_handle(run_id).signal(signal, args=arguments, rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        raise await explained(client, run_id, error) from error


async def status_of(handle: WorkflowHandle[Any, Any]) -> RunStatus:
    answer: RunStatus = await handle.query("status", result_type=RunStatus, rpc_timeout=RPC_TIMEOUT)
    return answer


async def ledger_of(handle: WorkflowHandle[Any, Any]) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = await handle.query(
        "ledger", result_type=list[dict[str, Any]], rpc_timeout=RPC_TIMEOUT
    )
    return answer


async def is_running(client: Client, run_id: str) -> bool:
    """Raises `RunUnknown` for a name Temporal does not know."""
    try:
        found = await client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        raise await explained(client, run_id, error) from error
    return found.status is WorkflowExecutionStatus.RUNNING


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


async def explained(client: Client, run_id: str, error: RPCError) -> RunUnknown | Unreachable:
    """What an RPC error means for somebody who named a run."""
    if error.status is not RPCStatusCode.NOT_FOUND:
        return Unreachable(
            f"Temporal answered {error.status.name}: {error.message}. Is the stack up? See `psrl status`"
        )
    alive = await live_runs(client)
    return RunUnknown(
        f"no run {run_id!r} is running{nearest(run_id, alive)}; running now: {', '.join(alive) or 'none'}. "
        "`psrl status` lists finished ones too"
    )


def cause_of(error: BaseException) -> str:
    """The message of the fault itself: the first below the layers of activities and child workflows that passed it on.
    What caused the fault in turn (an `OSError` under our `DataError`) says less: it names no key, file or line."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, TerminatedError):
            return f"somebody terminated it in Temporal ({current.message or 'no reason given'})"
        if isinstance(current, FailureError) and not isinstance(current, ActivityError | ChildWorkflowError):
            return current.message
        current = getattr(current, "cause", None)
    return str(error)
