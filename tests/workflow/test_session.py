"""One session as a workflow: turns as updates, hang and continue, its limits and its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, InstanceId, RunId, session_id, session_workflow
from psrl.schemas.messages.rollout import Placement, Sampling, SegmentEnd, TurnFailure, TurnRequest, TurnResult
from psrl.schemas.messages.run import TurnLimits
from psrl.schemas.messages.sessions import (
    AskedTurn,
    CloseSession,
    ContinueSession,
    HangSession,
    PlayedTurn,
    SessionLimits,
    SessionRecord,
    StartSession,
)
from psrl.schemas.status import SessionStatus
from psrl.workflows.sessions.session import Session
from tests.support.groups import rollout_settings
from tests.support.scripted_parts import ScriptedParts

GROUP = GroupId("000007")
LIMITS = SessionLimits(timeout_s=3600, idle_s=600, hang_s=600, drain_s=30)
Handle = WorkflowHandle[Session, SessionRecord]


def asked(turn: int = 0, index: int = 0, placements: tuple[Placement, ...] = ()) -> AskedTurn:
    return AskedTurn(index=index, turn=turn, sampling=Sampling(temperature=1, max_tokens=8), placements=placements)


async def begin(
    client: Client,
    run_id: str,
    turns: TurnLimits | None = None,
    *,
    attempt: int = 1,
    first_call: int = 1,
    **limits: float,
) -> Handle:
    start = StartSession(
        run_id=RunId(run_id),
        session_id=session_id(GROUP, 0, attempt),
        group_id=GROUP,
        version_tag=0,
        rollout=rollout_settings(turns=turns),
        limits=LIMITS.model_copy(update=limits),
        first_call=first_call,
    )
    name = session_workflow(start.run_id, start.session_id)
    return await client.start_workflow(Session.run, start, id=name, task_queue=ORCHESTRATOR_QUEUE)


async def play(session: Handle, request: AskedTurn, key: str | None = None) -> PlayedTurn:
    return await session.execute_update(Session.turn, request, id=key or uuid4().hex)


async def status(session: Handle) -> SessionRecord:
    return await session.query(Session.record)


def refused(error: WorkflowUpdateFailedError) -> str:
    assert isinstance(error.cause, ApplicationError)
    return f"{error.cause.type}: {error.cause.message}"


class Paced(ScriptedParts):
    """Turns that end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = {InstanceId("rollout-0"): 0, InstanceId("rollout-1"): 0}
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
        self.began.set()
        await self.may_end.wait()
        return self.finished(request, instance)


@asynccontextmanager
async def in_flight(
    client: Client, run_id: str, parts: Paced, **limits: float
) -> AsyncIterator[tuple[Handle, "asyncio.Task[PlayedTurn]"]]:
    """A session whose first turn is being played."""
    async with parts.workers(client):
        session = await begin(client, run_id, **limits)
        running = asyncio.create_task(play(session, asked(0)))
        await parts.began.wait()
        yield session, running


def serving() -> ScriptedParts:
    parts = ScriptedParts()
    parts.versions = {InstanceId("rollout-0"): 0, InstanceId("rollout-1"): 0}
    return parts


async def test_turns_follow_each_other_and_the_record_adds_them_up(client: Client, run_id: str) -> None:
    parts = serving()
    async with parts.workers(client):
        session = await begin(client, run_id)
        first, second = await play(session, asked(0)), await play(session, asked(1))
        other = await play(session, asked(0, index=2))
        record = await status(session)
        await session.signal(Session.close, CloseSession(reason="done"))
        ended = await session.result()
    assert [(t.index, t.turn, t.tokens, t.end) for t in (first, second, other)] == [
        (0, 0, 3, SegmentEnd.STOP),
        (0, 1, 3, SegmentEnd.STOP),
        (2, 0, 3, SegmentEnd.STOP),
    ]
    assert [(b.index, b.turns, b.tokens, b.in_flight) for b in record.branches] == [(0, 2, 6, False), (2, 1, 3, False)]
    assert (ended.status, ended.reason) == (SessionStatus.CLOSED, "done")
    assert [s.status for s in parts.sessions] == [SessionStatus.CLOSING, SessionStatus.CLOSED]
    assert all(request.conversation and request.call >= 1 for request in parts.generated)
    assert len({(r.call, r.turn) for r in parts.generated if r.trajectory.index == 0}) == 2


async def test_an_episode_that_is_played_anew_draws_other_numbers(client: Client, run_id: str) -> None:
    parts = serving()
    async with parts.workers(client):
        for attempt in (1, 2):
            session = await begin(client, run_id, attempt=attempt)
            await play(session, asked())
            await session.signal(Session.close)
            await session.result()
    assert len({request.sampling.seed for request in parts.generated}) == 2


async def test_a_session_of_a_run_whose_groups_play_with_an_environment_is_answered_by_its_agent_alone(
    client: Client, run_id: str
) -> None:
    parts = serving()
    async with asyncio.timeout(60), parts.workers(client):
        session = await begin(client, run_id, turns=TurnLimits(attempt_s=60))
        assert [(await play(session, asked(turn))).end for turn in (0, 1)] == [SegmentEnd.STOP, SegmentEnd.STOP]
        await session.signal(Session.close, CloseSession(reason="done"))
        await session.result()
    assert parts.stepped == []


async def test_a_turn_that_is_asked_for_again_is_played_once(client: Client, run_id: str) -> None:
    parts = serving()
    async with parts.workers(client):
        session = await begin(client, run_id)
        first = await play(session, asked(0), key="k")
        again = [await play(session, asked(0), key="k"), await play(session, asked(0), key="another name")]
        await session.signal(Session.close)
        await session.result()
    assert again == [first, first]
    assert len(parts.generated) == 1


async def test_a_second_turn_on_a_branch_in_flight_is_refused_and_the_session_lives_on(
    client: Client, run_id: str
) -> None:
    parts = Paced()
    async with in_flight(client, run_id, parts) as (session, running):
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await play(session, asked(1))
        elsewhere = asyncio.create_task(play(session, asked(0, index=2)))
        parts.may_end.set()
        await asyncio.gather(running, elsewhere)
        await play(session, asked(1))
        await session.signal(Session.close)
        await session.result()
    assert refused(refusal.value).startswith("TurnInFlight: branch 0 has turn 0 in flight")


async def test_a_hang_in_mid_turn_waits_for_the_turn_and_the_next_one_waits_for_continue(
    client: Client, run_id: str
) -> None:
    parts = Paced()
    async with in_flight(client, run_id, parts) as (session, running):
        await session.signal(Session.hang, HangSession(reason="no room for its KV cache"))
        pending = await status(session)
        parts.may_end.set()
        await running
        hung = await status(session)
        waiting = asyncio.create_task(play(session, asked(1)))
        await asyncio.sleep(0)
        assert len(parts.generated) == 1
        await session.signal("continue", ContinueSession(instance=InstanceId("rollout-1")))
        played = await waiting
        going_on = await status(session)
        await session.signal(Session.close)
        await session.result()
    assert (pending.status, pending.hang_pending) == (SessionStatus.RUNNING, True)
    assert (hung.status, hung.hang_pending, hung.reason) == (SessionStatus.HUNG, False, "no room for its KV cache")
    assert going_on.status is SessionStatus.RUNNING
    assert played.instance == "rollout-1"


async def test_what_happens_while_a_change_is_recorded_is_recorded_after_it(client: Client, run_id: str) -> None:
    recording, may_go_on, both = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(ScriptedParts):
        @activity.defn(name="record_session")
        async def record_session(self, request: SessionRecord) -> None:
            self.sessions.append(request)
            recording.set()
            await may_go_on.wait()
            if len(self.sessions) == 2:
                both.set()

    parts = Slow()
    async with parts.workers(client):
        session = await begin(client, run_id)
        await session.signal(Session.hang)
        await recording.wait()
        await session.signal("continue")
        may_go_on.set()
        await asyncio.wait_for(both.wait(), 20)
        await session.signal(Session.close)
        await session.result()
    assert [record.status for record in parts.sessions[:2]] == [SessionStatus.HUNG, SessionStatus.RUNNING]


async def test_a_session_that_is_cancelled_while_a_change_is_recorded_is_closed(client: Client, run_id: str) -> None:
    recording = asyncio.Event()

    class Stuck(ScriptedParts):
        @activity.defn(name="record_session")
        async def record_session(self, request: SessionRecord) -> None:
            self.sessions.append(request)
            recording.set()
            while len(self.sessions) == 1:
                activity.heartbeat()
                await asyncio.sleep(0.1)

    parts = Stuck()
    async with parts.workers(client):
        session = await begin(client, run_id)
        await session.signal(Session.hang)
        await recording.wait()
        await session.cancel()
        record = await session.result()
    assert (record.status, record.reason) == (SessionStatus.CLOSED, "cancelled")
    assert parts.sessions[-1].status is SessionStatus.CLOSED


async def test_a_turn_that_waits_for_a_hung_session_is_refused_when_it_closes(client: Client, run_id: str) -> None:
    async with serving().workers(client):
        session = await begin(client, run_id)
        await session.signal(Session.hang)
        waiting = asyncio.create_task(play(session, asked(0)))
        assert (await status(session)).status is SessionStatus.HUNG
        await session.signal(Session.close, CloseSession(reason="deleted"))
        with pytest.raises(WorkflowUpdateFailedError) as refusal:
            await waiting
        await session.result()
    assert refused(refusal.value) == "SessionClosed: the session is closing: deleted"


async def test_a_closing_session_lets_the_turn_in_flight_end(client: Client, run_id: str) -> None:
    parts = Paced()
    async with in_flight(client, run_id, parts) as (session, running):
        await session.signal(Session.close)
        with pytest.raises(WorkflowUpdateFailedError, match="failed") as refusal:
            await play(session, asked(0, index=2))
        parts.may_end.set()
        played = await running
        record = await session.result()
    assert played.tokens == 3
    assert record.status is SessionStatus.CLOSED
    assert refused(refusal.value).startswith("SessionClosed")


async def test_what_does_not_end_within_the_drain_limit_is_cut_down_to_the_engine(client: Client, run_id: str) -> None:
    cancelled = asyncio.Event()

    class Endless(Paced):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            try:
                return await super().on_generate(request, instance)
            finally:
                cancelled.set()

    parts = Endless()
    async with in_flight(client, run_id, parts, drain_s=1) as (session, running):
        await session.signal(Session.close)
        with pytest.raises(WorkflowUpdateFailedError) as cut:
            await running
        await session.result()
        await asyncio.wait_for(cancelled.wait(), 20)
    assert refused(cut.value) == "SessionClosed: the session closed before the turn had ended"


async def test_a_turn_that_nobody_waits_for_is_cut_at_once(client: Client, run_id: str) -> None:
    parts = Paced()
    async with in_flight(client, run_id, parts, drain_s=3600) as (session, running):
        await session.signal(Session.close)
        await session.signal(Session.close, CloseSession(reason="the agent was killed", cut=True))
        with pytest.raises(WorkflowUpdateFailedError) as cut:
            await running
        await session.result()
    assert refused(cut.value) == "SessionClosed: the session closed before the turn had ended"


async def test_calls_of_every_branch_begin_above_those_of_an_earlier_session(client: Client, run_id: str) -> None:
    parts = serving()
    async with parts.workers(client):
        session = await begin(client, run_id, first_call=8)
        await play(session, asked(0))
        await play(session, asked(0, index=2))
        await session.signal(Session.close)
        await session.result()
    assert [request.call for request in parts.generated] == [8, 8]


async def test_a_turn_that_failed_for_good_tells_why_and_the_session_lives_on(client: Client, run_id: str) -> None:
    class Refusing(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.turn == 1:
                return TurnResult(
                    index=0, failure=TurnFailure(type="InvariantViolated", message="too long", retryable=False)
                )
            return self.finished(request, instance)

    parts = Refusing()
    parts.versions = {InstanceId("rollout-0"): 0}
    async with parts.workers(client):
        session = await begin(client, run_id)
        await play(session, asked(0))
        with pytest.raises(WorkflowUpdateFailedError) as failure:
            await play(session, asked(1))
        await play(session, asked(0, index=2))
        await session.signal(Session.close)
        await session.result()
    assert refused(failure.value) == "TurnFailed: InvariantViolated: too long"


async def test_an_interrupted_turn_goes_on_where_it_was_if_there_is_room(client: Client, run_id: str) -> None:
    class Interrupted(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.call < 3:
                return self.interrupted(request, tokens=1)
            return self.finished(request, instance, tokens=4)

    parts = Interrupted()
    parts.versions = {InstanceId("rollout-0"): 0, InstanceId("rollout-1"): 0}
    async with parts.workers(client):
        session = await begin(client, run_id)
        place = Placement(index=0, instance=InstanceId("rollout-1"), version=0)
        played = await play(session, asked(0, placements=(place,)))
        await session.signal(Session.close)
        await session.result()
    assert (played.tokens, [request.call for request in parts.generated]) == (4, [1, 2, 3])
    assert {request.sampling.seed for request in parts.generated} == {parts.generated[0].sampling.seed}


@pytest.mark.parametrize(
    ("limit", "before", "reason"),
    [
        ({"idle_s": 60}, (), "no turn was asked for in 60 s"),
        ({"timeout_s": 300}, (), "it has had its 300 s"),
        ({"hang_s": 60, "idle_s": 90}, (SessionStatus.HUNG, SessionStatus.RUNNING), "no turn was asked for in 90 s"),
    ],
    ids=["idle", "old", "hung, then idle"],
)
async def test_every_wait_of_a_session_has_an_end(
    skipping: Client, run_id: str, limit: dict[str, float], before: tuple[SessionStatus, ...], reason: str
) -> None:
    parts = serving()
    async with parts.workers(skipping):
        session = await begin(skipping, run_id, **limit)
        if before:
            await session.signal(Session.hang)
        record = await session.result()
    assert (record.status, record.reason) == (SessionStatus.CLOSED, reason)
    assert [s.status for s in parts.sessions] == [*before, SessionStatus.CLOSING, SessionStatus.CLOSED]


async def test_a_cancelled_session_cuts_its_turn_and_is_closed(client: Client, run_id: str) -> None:
    parts = Paced()
    async with in_flight(client, run_id, parts) as (session, running):
        await session.cancel()
        with pytest.raises(WorkflowUpdateFailedError):
            await running
        record = await session.result()
    assert (record.status, record.reason) == (SessionStatus.CLOSED, "cancelled")


async def test_a_session_with_a_long_history_continues_as_new_and_remembers(client: Client, run_id: str) -> None:
    """Its answers, the number of calls per branch, and what is left of its time."""
    parts = serving()
    state: dict[str, Any] = {
        "left_s": 100,
        "branches": {
            "0": {
                "index": 0,
                "turns": 1,
                "calls": 5,
                "tokens": 3,
                "versions": [0],
                "instance": "rollout-0",
                "last": PlayedTurn(
                    index=0, turn=0, end=SegmentEnd.STOP, tokens=3, versions=(0,), instance=InstanceId("rollout-0")
                ).model_dump(mode="json"),
            }
        },
    }
    async with parts.workers(client):
        start = StartSession(
            run_id=RunId(run_id),
            session_id=session_id(GROUP, 0),
            group_id=GROUP,
            version_tag=0,
            rollout=rollout_settings(),
            limits=LIMITS,
            carried=state,
        )
        session = await client.start_workflow(
            Session.run, start, id=session_workflow(start.run_id, start.session_id), task_queue=ORCHESTRATOR_QUEUE
        )
        again, fresh = await play(session, asked(0)), await play(session, asked(1))
        await session.signal(Session.close)
        await session.result()
    assert (again.tokens, fresh.turn) == (3, 1)
    assert [(r.turn, r.call) for r in parts.generated] == [(1, 5)]
