"""`Session` workflows as they are started and closed from outside. Used by the agent runner, and by the gateway, which
adds what only agents ask of them.

Every call may be repeated, and raises `Unreachable` when Temporal does not answer.
"""

import asyncio
from typing import Any

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...schemas.errors import Unreachable
from ...schemas.ids import ORCHESTRATOR_QUEUE, RunId, SessionId, session_workflow
from ...schemas.messages.base import Message
from ...schemas.messages.sessions import CloseSession, SessionRecord, StartSession
from ...schemas.search import attributes
from ...schemas.silence import why_silent

WORKFLOW = "Session"
CLOSE_MARGIN_S = 30.0
"""For what closing takes beside the drain."""


class RunningSessions:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def start(self, start: StartSession) -> None:
        """One that has run already stays as it is."""
        try:
            await self._client.start_workflow(WORKFLOW, start, **begun_once(start))
        except WorkflowAlreadyStartedError:
            return
        except RPCError as error:
            raise away(error) from error

    async def close(self, run_id: RunId, name: SessionId, request: CloseSession) -> bool:
        """False: it does not run."""
        return await self.signal(run_id, name, "close", request)

    async def closed(self, run_id: RunId, name: SessionId, timeout_s: float) -> SessionRecord:
        """When it has."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._of_any_type(run_id, name).result()
        except WorkflowFailureError as error:
            raise Unreachable(f"the session did not close in order: {error.cause}") from error
        except RPCError as error:
            raise away(error) from error
        except TimeoutError as error:
            raise Unreachable(f"session {name} has not closed within {timeout_s:g} s") from error

    async def see_closed(self, start: StartSession, request: CloseSession) -> None:
        """Close it and wait until it is closed, also where it was never started: what asks for it later is refused."""
        await self.start(start)
        drain_s = 0.0 if request.cut else start.limits.drain_s
        if await self.close(start.run_id, start.session_id, request):
            await self.closed(start.run_id, start.session_id, drain_s + CLOSE_MARGIN_S)

    async def signal(self, run_id: RunId, name: SessionId, signal: str, request: Message) -> bool:
        try:
            await self._of_any_type(run_id, name).signal(signal, request)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise away(error) from error
        return True

    def _of_any_type(self, run_id: RunId, name: SessionId) -> WorkflowHandle[object, SessionRecord]:
        return self._client.get_workflow_handle(session_workflow(run_id, name), result_type=SessionRecord)


def begun_once(start: StartSession) -> dict[str, Any]:
    """How a session is started, whoever is first: one that runs is taken as it is, one that is over stays so."""
    return {
        "id": session_workflow(start.run_id, start.session_id),
        "task_queue": ORCHESTRATOR_QUEUE,
        "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING,
        "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
        "search_attributes": attributes(start.run_id, group=start.group_id),
        "static_summary": f"session of group {start.group_id}",
    }


def away(error: RPCError) -> Unreachable:
    return Unreachable(f"Temporal did not answer: {why_silent(error)}")
