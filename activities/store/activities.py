"""The activities that only touch the store; the orchestrator hosts them."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity

from ...schemas.ids import GroupId, RunId
from ...schemas.messages.data import ReopenRun
from ...schemas.messages.run import EvaluationReport, RunStatus, StepReport
from ...schemas.messages.sessions import SessionRecord
from ...schemas.messages.training import BatchInfo, BatchRequest
from ..boundary import boundary
from ..heartbeat import heartbeating
from ..sessions.outside import Closes, close_outside
from ..sessions.sessions import store_session
from .batches import record_batch
from .groups import exit_status, mark_groups
from .records import FINAL, reopen_run, store_evaluation, store_run, store_step


class StoreActivities:
    def __init__(self, store: AsyncEngine, sessions: Closes | None = None) -> None:
        """`sessions`: who closes those from outside when their run ends; null: nobody."""
        self._store, self._sessions = store, sessions

    @activity.defn(name="make_batch")
    @boundary
    async def make_batch(self, request: BatchRequest) -> BatchInfo:
        async with heartbeating():
            return await record_batch(self._store, request)

    @activity.defn(name="record_step")
    @boundary
    async def record_step(self, request: StepReport) -> None:
        await store_step(self._store, request)

    @activity.defn(name="record_evaluation")
    @boundary
    async def record_evaluation(self, request: EvaluationReport) -> None:
        await store_evaluation(self._store, request)

    @activity.defn(name="record_run")
    @boundary
    async def record_run(self, request: RunStatus) -> None:
        await store_run(self._store, request)
        if request.phase in FINAL and self._sessions is not None:
            await close_outside(self._store, self._sessions, request.run_id)

    @activity.defn(name="record_session")
    @boundary
    async def record_session(self, request: SessionRecord) -> None:
        await store_session(self._store, request)

    @activity.defn(name="reopen_run")
    @boundary
    async def reopen_run(self, request: ReopenRun) -> None:
        await reopen_run(self._store, request)

    async def mark_groups(self, run_id: RunId, groups: Sequence[GroupId], reason: str) -> None:
        """The store's half of `cancel_groups`."""
        await mark_groups(self._store, run_id, groups, exit_status(reason), reason)
