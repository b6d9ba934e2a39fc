"""Which sessions hang and which continue, by the KV cache there is: looked at from time to time, decided by the policy,
done by the sessions' own signals. Off unless a run asks for it (`psrl.rollout_coordination.session_strategy`).

Promises: of several copies of the gateway one looks at a time, and nothing that it needs is kept between two looks, so
that any copy may take the next; a session that hangs after its turn in flight is asked once; a look that fails is told
and the next one is taken; a session that no instance could ever hold is closed with that reason, not kept hanging.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ...activities.sessions.view import OpenSession
from ...schemas.config.psrl import ThunderAgent as Settings
from ...schemas.errors import PsrlError
from ...schemas.ids import InstanceId, RunId, SessionId
from ...schemas.messages.fleet import FleetSnapshot
from ...schemas.messages.rollout import InstanceState
from ...schemas.messages.sessions import CloseSession, ContinueSession, HangSession
from ...schemas.status import SessionStatus
from ..coordinator.policies.session.contract import Doing, InstanceRoom, SessionPlan, SessionSnapshot, SessionView
from ..coordinator.policies.session.thunder_agent import ThunderAgent
from .errors import STORE_AWAY
from .models import Models
from .store import Sessions
from .workflows import Workflows

log = logging.getLogger(__name__)

TICK_S = 0.1
HANGS_FOR = "the KV cache of its instance is full"
EXPECTED = (*STORE_AWAY, PsrlError)


class Capacity:
    def __init__(
        self,
        sessions: Sessions,
        workflows: Workflows,
        models: Models,
        fleet: Callable[[], Awaitable[FleetSnapshot]],
        alone: "Callable[[RunId], AbstractAsyncContextManager[bool]]",
    ) -> None:
        self._sessions, self._workflows, self._models = sessions, workflows, models
        self._fleet, self._alone = fleet, alone
        self._due: dict[RunId, float] = {}
        self._asked: dict[RunId, frozenset[SessionId]] = {}
        """To hang, and may not yet: each signal more would stay in the history of a turn that takes minutes."""

    async def run(self) -> None:
        """Until it is cancelled. Looks at the runs whose sessions this copy serves."""
        while True:
            await asyncio.sleep(TICK_S)
            for model in self._models.loaded:
                settings = model.config.psrl.rollout_coordination.session_strategy.thunder_agent
                if not settings.enable or time.monotonic() < self._due.get(model.run_id, 0.0):
                    continue
                self._due[model.run_id] = time.monotonic() + settings.check_interval_in_ms / 1000
                try:
                    async with self._alone(model.run_id) as ours:
                        if ours:
                            await self.look(model.run_id, settings)
                except Exception as error:  # turns are played whatever becomes of a look
                    defect = not isinstance(error, EXPECTED)
                    log.warning("sessions of run %s were not looked at: %r", model.run_id, error, exc_info=defect)

    async def look(self, run_id: RunId, settings: Settings) -> SessionPlan:
        """One look. Returns what was done."""
        found = [one for one in await self._sessions.open_sessions(run_id) if one.status != SessionStatus.CLOSING]
        if not found:
            self._asked.pop(run_id, None)
            return SessionPlan()
        snapshot = SessionSnapshot(rooms(await self._fleet(), run_id), [_view(one) for one in found if one.instance])
        plan = policy_of(settings)(snapshot)
        asked, self._asked[run_id] = self._asked.get(run_id, frozenset()), frozenset(plan.hang)
        for name in plan.hang:
            if name not in asked:
                await self._workflows.hang(run_id, name, HangSession(reason=HANGS_FOR))
        for name, instance in plan.go_on.items():
            pin = instance if settings.continue_force_pin else None
            await self._workflows.go_on(run_id, name, ContinueSession(instance=pin))
        tokens = {one.session: one.tokens for one in snapshot.sessions}
        for name in plan.too_large:
            largest = max((room.capacity for room in snapshot.instances.values()), default=0)
            why = f"no instance could hold its {tokens[name]} tokens and {settings.buffer_per_session} more"
            await self._workflows.close(run_id, name, CloseSession(reason=f"{why}: the largest has room for {largest}"))
        return plan


def alone_with(store: AsyncEngine) -> "Callable[[RunId], AbstractAsyncContextManager[bool]]":
    """Whether this copy has a run to itself for the time of a block: by a lock of the store, held in a transaction."""
    take = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:name, 0))")

    @asynccontextmanager
    async def alone(run_id: RunId) -> AsyncIterator[bool]:
        async with store.begin() as connection:
            yield bool(await connection.scalar(take, {"name": f"sessions of {run_id}"}))

    return alone


def policy_of(settings: Settings) -> ThunderAgent:
    return ThunderAgent(settings.env_token_weight, settings.buffer_per_session, settings.continue_scope)


def rooms(fleet: FleetSnapshot, run_id: RunId) -> Mapping[InstanceId, InstanceRoom]:
    """Of the run's instances that serve. One that is between two versions keeps its sessions as they are."""
    serving = (one.report for one in fleet.instances if one.report.run_id == run_id)
    return {
        report.instance: InstanceRoom(
            report.kv_capacity_tokens, round(report.kv_cache_usage * report.kv_capacity_tokens)
        )
        for report in serving
        if report.state is InstanceState.SERVING and report.kv_capacity_tokens > 0
    }


def _view(one: OpenSession) -> SessionView:
    assert one.instance is not None
    return SessionView(
        session=SessionId(one.session_id),
        doing=Doing.GENERATE if one.turns_in_flight else Doing.ENV,
        tokens=one.tokens,
        instance=InstanceId(one.instance),
        hung=one.status == SessionStatus.HUNG,
    )
