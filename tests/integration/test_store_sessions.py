"""Sessions in the store: their rows, the numbers of their turns, their branches, and what the engine is given."""

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.sessions.access import Caller, caller_of, run_token
from psrl.activities.sessions.outside import open_outside
from psrl.activities.sessions.places import NewTurn, PlacedTurn, place_turn
from psrl.activities.sessions.sessions import NewSession, StoredSession, find_session, open_session, store_session
from psrl.activities.sessions.turns import (
    KnownTurn,
    give_up_turn,
    known_turns,
    name_turn,
    prompt_tokens,
    sampled,
)
from psrl.activities.sessions.view import OpenSession, branches_of, open_sessions
from psrl.activities.store.activities import StoreActivities
from psrl.activities.store.branches import Fork
from psrl.schemas.errors import InvariantViolated, RunUnknown, SessionClosed, TurnInFlight
from psrl.schemas.ids import GroupId, RunId, SessionId
from psrl.schemas.messages.data import Purpose
from psrl.schemas.messages.rollout import SegmentEnd, TurnResult
from psrl.schemas.messages.run import RunPhase, RunStatus
from psrl.schemas.messages.sessions import CloseSession, SessionRecord
from psrl.schemas.status import SessionStatus
from psrl.workers.rollout.generate import InEngine
from tests.support.rollout import GROUP, RUN, Bench, add_group, call, make_bench, stored_trajectory
from tests.support.scripted_engine import Script, scripted_tokens

pytestmark = pytest.mark.integration

EPISODES = 2
NAME = SessionId("000000-t01")


async def opened(store: AsyncEngine, token: str = "secret") -> StoredSession:
    await open_session(store, NewSession(RUN, GROUP, 1, EPISODES, token, {"x-prompt-id": "7"}))
    found = await find_session(store, RUN, NAME)
    assert found is not None
    return found


@pytest.fixture
async def session(store: AsyncEngine) -> StoredSession:
    await add_group(store, trajectories=0, prompt=())
    return await opened(store)


@pytest.fixture
async def bench(store: AsyncEngine, session: StoredSession) -> Bench:
    bench = make_bench(store, Script())
    await bench.serve(0)
    return bench


async def play(bench: Bench, index: int, turn: int, number: int, tokens: int = 3) -> TurnResult:
    request = call(index, number, max_tokens=tokens).model_copy(update={"turn": turn, "conversation": True})
    return await bench.generator.generate(request, 1, InEngine())


async def test_a_session_is_opened_once_and_found_by_its_name(store: AsyncEngine, session: StoredSession) -> None:
    again = await opened(store, token="another")
    assert again == session
    assert (session.group_id, session.episode, session.episodes, session.version_tag) == (GROUP, 1, EPISODES, 0)
    assert session.labels == {"x-prompt-id": "7"}
    assert (session.opened_by("secret"), session.opened_by("another"), session.opened_by("")) == (True, False, False)
    assert await find_session(store, RUN, SessionId("000000-t00")) is None


async def test_a_session_of_a_group_that_is_not_there_is_refused(store: AsyncEngine) -> None:
    await add_group(store)
    with pytest.raises(InvariantViolated, match="group 000099 of run run-1 is not in the store"):
        await open_session(store, NewSession(RUN, GroupId("000099"), 0, EPISODES, "t"))


async def test_a_closed_session_stays_closed(store: AsyncEngine, session: StoredSession) -> None:
    for status, reason in ((SessionStatus.HUNG, "full\0"), (SessionStatus.CLOSED, "done"), (SessionStatus.RUNNING, "")):
        await store_session(
            store, SessionRecord(run_id=RUN, session_id=NAME, group_id=GROUP, status=status, reason=reason)
        )
    found = await find_session(store, RUN, NAME)
    assert found is not None
    assert (found.status, found.reason) == (SessionStatus.CLOSED, "done")


async def test_the_same_request_is_the_same_turn_whoever_asks_at_the_same_time(
    store: AsyncEngine, session: StoredSession
) -> None:
    asked = [place_turn(store, session, "k", NewTurn(1), [1, 2, 3]) for _ in range(5)]
    assert await asyncio.gather(*asked) == [PlacedTurn(1, 0, None)] * 5
    assert await known_turns(store, session) == [KnownTurn(1, 0, None, None, "k")]


async def test_a_branch_has_one_turn_in_flight(store: AsyncEngine, session: StoredSession) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1])
    with pytest.raises(TurnInFlight, match="branch 1 of session 000000-t01 has turn 0 in flight"):
        await place_turn(store, session, "b", NewTurn(1), [2])
    assert await place_turn(store, session, "c", NewTurn(3), [2]) == PlacedTurn(3, 0, None)


async def test_of_requests_that_want_one_place_at_the_same_time_one_gets_it(
    store: AsyncEngine, session: StoredSession
) -> None:
    asked = [place_turn(store, session, key, NewTurn(1), [1, 2, 3]) for key in "abcde"]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [one for one in found if not isinstance(one, TurnInFlight)] == [PlacedTurn(1, 0, None)]
    assert [turn.turn for turn in await known_turns(store, session)] == [0]


async def test_a_turn_takes_the_place_that_its_tokens_were_made_for_or_none(
    bench: Bench, store: AsyncEngine, session: StoredSession
) -> None:
    """Another request may be played from beginning to end between the choice of a place and the turn there."""
    await place_turn(store, session, "a", NewTurn(1), [1])
    await play(bench, 1, 0, 1)
    with pytest.raises(TurnInFlight, match="branch 1 comes to turn 1; turn 0 was to be placed"):
        await place_turn(store, session, "b", NewTurn(1), [2])
    await place_turn(store, session, "c", NewTurn(1, 1), [3])
    await play(bench, 1, 1, 2)
    with pytest.raises(TurnInFlight, match="branch 1 comes to turn 2; turn 1 was to be placed"):
        await place_turn(store, session, "d", NewTurn(1, 1), [4])
    assert [turn.key for turn in await known_turns(store, session)] == ["a", "c"]


async def test_a_session_that_is_closed_takes_no_turn_and_knows_those_it_has(
    store: AsyncEngine, session: StoredSession
) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1])
    await store_session(
        store, SessionRecord(run_id=RUN, session_id=NAME, group_id=GROUP, status=SessionStatus.CLOSED, reason="done")
    )
    with pytest.raises(SessionClosed):
        await place_turn(store, session, "b", NewTurn(3), [1])
    assert await place_turn(store, session, "a", NewTurn(1), [1]) == PlacedTurn(1, 0, None)


async def test_a_branch_of_another_episode_is_refused(store: AsyncEngine, session: StoredSession) -> None:
    with pytest.raises(InvariantViolated, match="branch 2 is none of session 000000-t01"):
        await place_turn(store, session, "a", NewTurn(2), [1])


async def test_two_sessions_of_a_group_may_use_the_same_key(store: AsyncEngine, session: StoredSession) -> None:
    await open_session(store, NewSession(RUN, GROUP, 0, EPISODES, "t"))
    other = await find_session(store, RUN, SessionId("000000-t00"))
    assert other is not None
    await place_turn(store, session, "k", NewTurn(1), [1])
    assert await place_turn(store, other, "k", NewTurn(0), [2]) == PlacedTurn(0, 0, None)
    assert len(await known_turns(store, other)) == 1


async def test_the_engine_is_given_what_was_said_and_sampled_token_by_token(
    bench: Bench, store: AsyncEngine, session: StoredSession
) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1, 2, 3])
    await play(bench, 1, 0, 1)
    first = await sampled(store, session, 1, 0)
    await place_turn(store, session, "b", NewTurn(1, 1), [4, 5])
    assert (await stored_trajectory(store, 1)).status == "pending"
    await play(bench, 1, 1, 2)
    contexts = [list(request.prompt_ids) for request in bench.engine.requests]
    assert contexts == [[1, 2, 3], [1, 2, 3, *first.token_ids, 4, 5]]
    assert first.token_ids == scripted_tokens([1, 2, 3], 3)
    assert (first.versions, first.instance, first.end, len(first.logprobs)) == (
        [0] * 3,
        "rollout-0",
        SegmentEnd.LENGTH,
        3,
    )
    ended = [KnownTurn(1, turn, None, SegmentEnd.LENGTH, key) for turn, key in enumerate("ab")]
    assert await known_turns(store, session) == ended
    trajectory = await stored_trajectory(store, 1)
    assert (trajectory.status, trajectory.tokens) == ("finished", 6)


async def test_a_branch_begins_with_the_tokens_of_the_one_it_left_up_to_there(
    bench: Bench, store: AsyncEngine, session: StoredSession
) -> None:
    """A fork of a fork, too; nothing is copied."""
    turns = ((NewTurn(1), 1), (NewTurn(1, 1), 2), (NewTurn(3, 0, Fork(1, 0)), 7), (NewTurn(5, 0, Fork(3, 0)), 8))
    for number, (where, said) in enumerate(turns, start=1):
        placed = await place_turn(store, session, f"k{number}", where, [said])
        await play(bench, placed.index, placed.turn, number)
    one = (await sampled(store, session, 1, 0)).token_ids
    three = (await sampled(store, session, 3, 0)).token_ids
    contexts = [list(request.prompt_ids) for request in bench.engine.requests]
    assert contexts[2:] == [[1, *one, 7], [1, *one, 7, *three, 8]]
    places = ((1, 0), (1, 1), (3, 0), (5, 0))
    counted = [await prompt_tokens(store, session, *place) for place in places]
    assert counted == [len(context) for context in contexts]
    views = await branches_of(store, session)
    assert [(view.index, view.forked) for view in views] == [(1, None), (3, Fork(1, 0)), (5, Fork(3, 0))]
    assert [view.token_ids[: view.turns[-1].prompt_tokens] for view in views] == contexts[1:]
    assert views[1].turns[0].token_ids == three
    assert (await stored_trajectory(store, 3)).tokens == 3


async def test_a_turn_that_is_played_again_answers_from_the_store(
    bench: Bench, store: AsyncEngine, session: StoredSession
) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1])
    before = await play(bench, 1, 0, 1)
    again = await play(bench, 1, 0, 2)
    assert (again.end, again.tokens, again.new_tokens) == (before.end, before.tokens, 0)
    assert len(bench.engine.requests) == 1


async def test_a_turn_gets_its_name_when_it_was_answered(
    bench: Bench, store: AsyncEngine, session: StoredSession
) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1])
    with pytest.raises(InvariantViolated, match="turn 0 of branch 1 of session 000000-t01 has not ended"):
        await sampled(store, session, 1, 0)
    await play(bench, 1, 0, 1)
    await name_turn(store, session, 1, 0, "node")
    assert await known_turns(store, session) == [KnownTurn(1, 0, "node", SegmentEnd.LENGTH, "a")]
    assert await place_turn(store, session, "a", NewTurn(1), [1]) == PlacedTurn(1, 0, SegmentEnd.LENGTH)


async def test_a_turn_that_is_given_up_leaves_its_key_to_another_and_its_branch_to_none(
    store: AsyncEngine, session: StoredSession
) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1])
    await give_up_turn(store, session, "a")
    assert await known_turns(store, session) == [KnownTurn(1, 0, None, None)]
    assert await place_turn(store, session, "a", NewTurn(3), [1]) == PlacedTurn(3, 0, None)
    with pytest.raises(TurnInFlight):
        await place_turn(store, session, "b", NewTurn(1), [1])


async def test_a_turn_that_has_ended_is_not_given_up(bench: Bench, store: AsyncEngine, session: StoredSession) -> None:
    await place_turn(store, session, "a", NewTurn(1), [1])
    await play(bench, 1, 0, 1)
    await give_up_turn(store, session, "a")
    assert [turn.key for turn in await known_turns(store, session)] == ["a"]


async def test_a_token_opens_one_session_or_all_of_a_run(store: AsyncEngine, session: StoredSession) -> None:
    token = await run_token(store, RUN)
    assert await run_token(store, RUN) == token
    assert await caller_of(store, token) == Caller(RUN, None)
    assert await caller_of(store, "secret") == Caller(RUN, NAME)
    assert await caller_of(store, "stranger") is None
    assert await caller_of(store, "") is None
    with pytest.raises(RunUnknown):
        await run_token(store, RunId("none"))


async def test_a_session_from_outside_has_a_group_of_its_own_for_no_batch(
    store: AsyncEngine, session: StoredSession
) -> None:
    new = NewSession(RUN, GroupId("outside-1"), 0, 1, "t", {})
    name = await open_outside(store, new, version_tag=3)
    assert await open_outside(store, new, version_tag=4) == name == "outside-1-t00"
    found = await find_session(store, RUN, name)
    assert found is not None
    assert (found.purpose, found.version_tag, session.purpose) == (Purpose.OUTSIDE, 3, Purpose.TRAIN)


class Told:
    def __init__(self) -> None:
        self.closed: list[tuple[str, CloseSession]] = []

    async def close(self, run_id: RunId, name: SessionId, request: CloseSession) -> bool:
        self.closed.append((name, request))
        return True


async def test_sessions_from_outside_are_closed_when_their_run_has_ended(
    store: AsyncEngine, session: StoredSession
) -> None:
    names = [
        await open_outside(store, NewSession(RUN, GroupId(f"outside-{number}"), 0, 1, "t", {}), version_tag=0)
        for number in range(3)
    ]
    over = SessionRecord(run_id=RUN, session_id=names[1], group_id=GroupId("outside-1"), status=SessionStatus.CLOSED)
    await store_session(store, over)
    told = Told()
    activities = StoreActivities(store, told)
    counts = {"step": 0, "total_steps": 1, "version": 0, "live_groups": 0, "occupied_groups": 0}
    for phase, closed in ((RunPhase.STOPPING, []), (RunPhase.STOPPED, [names[0], names[2]])):
        await activities.record_run(RunStatus(run_id=RUN, phase=phase, **counts))
        assert sorted(name for name, _ in told.closed) == closed
    assert told.closed[0][1] == CloseSession(reason="its run has ended", cut=True)


async def test_open_sessions_are_listed_with_what_they_do(
    bench: Bench, store: AsyncEngine, session: StoredSession
) -> None:
    idle = OpenSession(NAME, "running", 0, 0, None)
    assert await open_sessions(store, RUN) == [idle]
    await place_turn(store, session, "a", NewTurn(1), [1, 2])
    await play(bench, 1, 0, 1)
    await place_turn(store, session, "b", NewTurn(1, 1), [3])
    assert await open_sessions(store, RUN) == [OpenSession(NAME, "running", 1, 6, "rollout-0")]
    await place_turn(store, session, "c", NewTurn(3, fork=Fork(1, 0)), [4, 5])
    (found,) = await open_sessions(store, RUN)
    assert found.tokens == 5 + 2, "its longest context is that of the fork"
    closed = SessionRecord(run_id=RUN, session_id=NAME, group_id=GROUP, status=SessionStatus.CLOSED)
    await store_session(store, closed)
    assert await open_sessions(store, RUN) == []
