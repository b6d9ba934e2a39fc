"""Sessions that hang and continue by the KV cache there is."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from psrl.activities.sessions.view import OpenSession
from psrl.schemas.config import ContinueScope, RunConfig
from psrl.schemas.config.psrl import ThunderAgent
from psrl.schemas.errors import Unreachable
from psrl.schemas.ids import InstanceId, RunId, SessionId
from psrl.schemas.messages.fleet import FleetInstance, FleetSnapshot
from psrl.schemas.messages.rollout import InstanceReport, InstanceState
from psrl.schemas.messages.sessions import CloseSession
from psrl.schemas.status import SessionStatus
from psrl.workers.gateway import capacity as module
from psrl.workers.gateway.capacity import Capacity, rooms
from tests.support.gateway_parts import RUN, MemorySessions, MemoryWorkflows, gateway_parts

ON = ThunderAgent(enable=True, buffer_per_session=10)
A, B = InstanceId("rollout-0"), InstanceId("rollout-1")


def fleet_of(*reports: InstanceReport) -> FleetSnapshot:
    return FleetSnapshot(instances=tuple(FleetInstance(report=report, load=0, age_s=0.0) for report in reports))


def report(name: InstanceId = A, room: int = 1000, usage: float = 0.0, run: RunId = RUN) -> InstanceReport:
    state = InstanceState.SERVING
    return InstanceReport(instance=name, run_id=run, state=state, kv_capacity_tokens=room, kv_cache_usage=usage)


def a_session(
    name: str, tokens: int, status: SessionStatus = SessionStatus.RUNNING, in_flight: int = 0, at: str | None = A
) -> OpenSession:
    return OpenSession(name, status, in_flight, tokens, at)


class Site:
    """What is open, what there is room for, and what was done."""

    def __init__(self, folder: Path, opened: Sequence[OpenSession], fleet: FleetSnapshot) -> None:
        self.fleet, self.failing, self.held = fleet, 0, False
        self.asked, self.looked, self.closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.parts = gateway_parts(folder)

        class Opened(MemorySessions):
            async def open_sessions(self, run_id: RunId) -> Sequence[OpenSession]:
                return opened

        class Closing(MemoryWorkflows):
            async def close(self, run_id: RunId, name: SessionId, request: CloseSession) -> bool:
                closed.set()
                return await super().close(run_id, name, request)

        closed = self.closed
        self.workflows = Closing(self.parts.sessions)
        sessions = Opened(folder)
        self.capacity = Capacity(sessions, self.workflows, self.parts.gateway.models, self._fleet, self._alone)

    async def _fleet(self) -> FleetSnapshot:
        self.looked.set()
        if self.failing:
            self.failing -= 1
            raise Unreachable("coordinator away")
        return self.fleet

    @asynccontextmanager
    async def _alone(self, run_id: RunId) -> AsyncIterator[bool]:
        held = self.held
        self.asked.set()
        yield not held


async def test_the_cheapest_sessions_of_a_full_instance_hang(tiny_model_dir: Path) -> None:
    opened = [a_session("busy", 600, in_flight=1), a_session("idle-1", 300), a_session("idle-2", 200)]
    site = Site(tiny_model_dir, opened, fleet_of(report(room=1000, usage=0.6)))
    await site.capacity.look(RUN, ON)
    assert site.workflows.hung == {SessionId("idle-2"): module.HANGS_FOR}
    assert not site.workflows.continued


async def test_a_session_whose_turn_is_in_flight_is_asked_once_to_hang(tiny_model_dir: Path) -> None:
    opened = [a_session("one", 600, in_flight=1), a_session("two", 600, in_flight=1)]
    site = Site(tiny_model_dir, opened, fleet_of(report(room=1000, usage=1.0)))
    await site.capacity.look(RUN, ON)
    assert site.workflows.hung.keys() == {"one"}
    site.workflows.hung.clear()
    await site.capacity.look(RUN, ON)
    assert not site.workflows.hung
    site.fleet = fleet_of(report(room=2000, usage=0.5))
    await site.capacity.look(RUN, ON)
    site.fleet = fleet_of(report(room=1000, usage=1.0))
    await site.capacity.look(RUN, ON)
    assert site.workflows.hung.keys() == {"one"}


async def test_a_hung_session_continues_when_there_is_room_and_is_pinned_if_asked_for(tiny_model_dir: Path) -> None:
    opened = [a_session("waits", 300, SessionStatus.HUNG), a_session("closes", 900, SessionStatus.CLOSING)]
    site = Site(tiny_model_dir, opened, fleet_of(report(A, room=200), report(B, room=1000)))
    await site.capacity.look(RUN, ON.model_copy(update={"continue_scope": ContinueScope.GLOBAL}))
    assert site.workflows.continued == {SessionId("waits"): None}
    pinned = ON.model_copy(update={"continue_scope": ContinueScope.GLOBAL, "continue_force_pin": True})
    await site.capacity.look(RUN, pinned)
    assert site.workflows.continued == {SessionId("waits"): B}


async def test_a_session_that_no_instance_could_hold_is_closed_with_that_reason(tiny_model_dir: Path) -> None:
    site = Site(tiny_model_dir, [a_session("large", 995, SessionStatus.HUNG)], fleet_of(report(room=1000)))
    await site.capacity.look(RUN, ON)
    assert site.workflows.closed_for == {
        SessionId("large"): "no instance could hold its 995 tokens and 10 more: the largest has room for 1000"
    }


async def test_sessions_that_no_known_instance_has_are_left_alone(tiny_model_dir: Path) -> None:
    opened = [a_session("new", 5000, at=None), a_session("elsewhere", 5000, at="rollout-9")]
    site = Site(tiny_model_dir, opened, fleet_of(report()))
    plan = await site.capacity.look(RUN, ON)
    assert (plan.hang, plan.go_on, plan.too_large) == ((), {}, ())


def test_only_instances_that_serve_the_run_have_room() -> None:
    pulling = report(B).model_copy(update={"state": InstanceState.PULLING})
    found = rooms(fleet_of(report(A, 100, 0.5), pulling, report(InstanceId("c"), run=RunId("other"))), RUN)
    assert {name: (room.capacity, room.used) for name, room in found.items()} == {A: (100, 50)}


async def test_a_look_that_fails_is_followed_by_another_and_none_is_taken_beside_another_copy(
    tiny_model_dir: Path,
) -> None:
    site = Site(tiny_model_dir, [a_session("large", 995, SessionStatus.HUNG)], fleet_of(report(room=1000)))
    site.failing = 1

    async def config(run_id: RunId) -> RunConfig:
        found = await MemorySessions(tiny_model_dir).config(run_id)
        strategy = {"thunder_agent": ON.model_copy(update={"check_interval_in_ms": 1})}
        coordination = found.psrl.rollout_coordination
        chosen = coordination.model_copy(
            update={"session_strategy": coordination.session_strategy.model_copy(update=strategy)}
        )
        return found.model_copy(update={"psrl": found.psrl.model_copy(update={"rollout_coordination": chosen})})

    site.parts.gateway.models._config = config
    await site.parts.gateway.models.of(RUN)
    site.held = True
    looking = asyncio.create_task(site.capacity.run())
    await asyncio.wait_for(site.asked.wait(), 20)
    assert not site.looked.is_set()
    site.held = False
    await asyncio.wait_for(site.closed.wait(), 20)
    looking.cancel()
    site.parts.gateway.models.close()
