"""The `Session` workflow as the gateway talks to it: the seam that tests replace."""

from typing import NoReturn, Protocol

from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ...activities.sessions.running import RunningSessions, away, begun_once
from ...schemas.errors import EngineUnavailable, SessionClosed, TurnInFlight, Unreachable
from ...schemas.ids import RunId, SessionId, session_workflow
from ...schemas.messages.sessions import (
    AskedTurn,
    CloseSession,
    ContinueSession,
    HangSession,
    PlayedTurn,
    SessionRecord,
    StartSession,
)
from ...schemas.silence import why_silent
from ...workflows.sessions.session import Session
from .errors import ApiError

CLOSED = (SessionClosed.__name__, "AcceptedUpdateCompletedWorkflow")
"""The session's own refusal, and the server's for an update that its workflow did not live to answer."""
Handle = WorkflowHandle[Session, SessionRecord]
Starting = WithStartWorkflowOperation[Session, SessionRecord]


class Workflows(Protocol):
    """Calls raise `Unreachable` when Temporal does not answer."""

    async def play(self, start: StartSession, asked: AskedTurn, key: str) -> PlayedTurn:
        """`start` is what the session is started with, if it does not run. Raises `SessionClosed`, `TurnInFlight`, and
        `EngineUnavailable` when the turn failed."""

    async def start(self, start: StartSession) -> None: ...

    async def record(self, run_id: RunId, name: SessionId) -> SessionRecord | None:
        """None: it was never started, or the server has forgotten it."""

    async def hang(self, run_id: RunId, name: SessionId, request: HangSession) -> bool:
        """False: it does not run, as below."""

    async def go_on(self, run_id: RunId, name: SessionId, request: ContinueSession) -> bool: ...

    async def close(self, run_id: RunId, name: SessionId, request: CloseSession) -> bool: ...

    async def see_closed(self, start: StartSession, request: CloseSession) -> None:
        """Returns when it has closed."""


class TemporalWorkflows(RunningSessions):
    async def play(self, start: StartSession, asked: AskedTurn, key: str) -> PlayedTurn:
        try:
            return await self._update(start, asked, key)
        except WorkflowUpdateFailedError as error:
            _raise_of(error)
        except WorkflowAlreadyStartedError as error:
            raise SessionClosed("the session is closed") from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            raise Unreachable(f"Temporal did not answer: {why_silent(error)}") from error
        except RPCError as error:
            if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
                raise ApiError(429, "queue_full", "the session has as many turns in flight as it may") from error
            raise away(error) from error

    async def _update(self, start: StartSession, asked: AskedTurn, key: str) -> PlayedTurn:
        try:
            return await self._handle(start.run_id, start.session_id).execute_update(Session.turn, asked, id=key)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        starting: Starting = WithStartWorkflowOperation(Session.run, start, **begun_once(start))
        return await self._client.execute_update_with_start_workflow(
            Session.turn, asked, id=key, start_workflow_operation=starting
        )

    async def record(self, run_id: RunId, name: SessionId) -> SessionRecord | None:
        try:
            return await self._handle(run_id, name).query(Session.record)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise away(error) from error

    async def hang(self, run_id: RunId, name: SessionId, request: HangSession) -> bool:
        return await self.signal(run_id, name, "hang", request)

    async def go_on(self, run_id: RunId, name: SessionId, request: ContinueSession) -> bool:
        return await self.signal(run_id, name, "continue", request)

    def _handle(self, run_id: RunId, name: SessionId) -> Handle:
        return self._client.get_workflow_handle_for(Session.run, session_workflow(run_id, name))


def _raise_of(error: WorkflowUpdateFailedError) -> NoReturn:
    """What the workflow raised, as the error of ours that it was there."""
    cause = error.cause
    if not isinstance(cause, ApplicationError):
        raise Unreachable(f"the turn could not be played now: {cause}") from error
    if cause.type == TurnInFlight.__name__:
        raise TurnInFlight(cause.message) from error
    if cause.type == "TurnFailed":
        raise EngineUnavailable(f"the turn failed: {cause.message}") from error
    if cause.type in CLOSED:
        raise SessionClosed(cause.message) from error
    # Asked for again, it is found in the store, or played.
    raise Unreachable(f"the turn could not be played now: {cause.message}") from error
