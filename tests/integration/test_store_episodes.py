"""Episodes in the store: set aside whole, ended once, and closed to whoever comes late."""

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.agents.episodes import end_episode, ended_before, read_episode, set_aside
from psrl.activities.sessions.places import NewTurn, place_turn
from psrl.activities.sessions.sessions import NewSession, StoredSession, find_session, open_session
from psrl.activities.sessions.turns import known_turns, name_turn
from psrl.activities.sessions.view import branches_of
from psrl.activities.store.branches import Fork
from psrl.schemas.errors import StaleAttempt
from psrl.schemas.ids import GroupId, SessionId
from psrl.schemas.messages.agents import RunAgent
from psrl.schemas.messages.episodes import EpisodeOutcome, TerminateReason
from psrl.schemas.messages.rollout import TurnResult
from psrl.schemas.tables import Group, Trajectory
from psrl.workers.rollout.generate import InEngine
from tests.support.rollout import GROUP, RUN, Bench, add_group, call, make_bench, stored_trajectory
from tests.support.scripted_engine import Script

pytestmark = pytest.mark.integration

R = TerminateReason
EPISODE = RunAgent(run_id=RUN, group_id=GROUP, episode=1, episodes=2)
FIRST, SECOND = SessionId("000000-t01"), SessionId("000000-t01.2")
WELL = EpisodeOutcome(ended=R.FINISHED, reward=0.5, info={"tests": 3})


@pytest.fixture
async def bench(store: AsyncEngine) -> Bench:
    await add_group(store, trajectories=2, prompt=())
    bench = make_bench(store, Script())
    await bench.serve(0)
    return bench


async def session(store: AsyncEngine, attempt: int = 1) -> StoredSession:
    name = await open_session(store, NewSession(RUN, GROUP, 1, 2, f"token {attempt}", attempt=attempt))
    found = await find_session(store, RUN, name)
    assert found is not None
    return found


async def play(bench: Bench, index: int, turn: int, number: int) -> TurnResult:
    request = call(index, number, max_tokens=3).model_copy(update={"turn": turn, "conversation": True})
    return await bench.generator.generate(request, 1, InEngine())


async def converse(bench: Bench, store: AsyncEngine, of: StoredSession, first_call: int = 1) -> None:
    """Two turns on the first branch, and a fork from the first of them whose second turn nobody has played."""
    for turn in range(2):
        await place_turn(store, of, f"a{turn}", NewTurn(1, turn), [10 + turn])
        await play(bench, 1, turn, first_call + turn)
    await name_turn(store, of, 1, 0, "node")
    await place_turn(store, of, "b0", NewTurn(3, 0, Fork(1, 0)), [20])
    await play(bench, 3, 0, first_call)
    await place_turn(store, of, "b1", NewTurn(3, 1), [21])
    await place_turn(store, of, "c0", NewTurn(5), [30])


async def trajectories(store: AsyncEngine, group: str = GROUP) -> list[tuple[int, str, int]]:
    query = select(Trajectory.index, Trajectory.status, Trajectory.tokens).where(Trajectory.group_id == group)
    async with store.connect() as connection:
        return [(i, status, tokens) for i, status, tokens in await connection.execute(query.order_by("index"))]


async def test_an_episode_ends_with_what_was_answered(bench: Bench, store: AsyncEngine) -> None:
    await converse(bench, store, await session(store))
    run = await end_episode(store, EPISODE, FIRST, WELL)
    assert (run.ended, run.turns, run.tokens, run.segments, run.versions) == (R.FINISHED, 3, 9, 3, (0,))
    assert await trajectories(store) == [(0, "pending", 0), (1, "finished", 6), (3, "finished", 3)]
    episode = await read_episode(store, EPISODE)
    assert (episode.outcome, episode.session, episode.sessions) == (WELL, FIRST, 1)
    assert await ended_before(store, EPISODE, WELL) == run


async def test_nothing_is_added_to_an_episode_that_has_ended(bench: Bench, store: AsyncEngine) -> None:
    of = await session(store)
    await converse(bench, store, of)
    await end_episode(store, EPISODE, FIRST, WELL)
    with pytest.raises(StaleAttempt):
        await play(bench, 3, 1, 2)
    assert (await stored_trajectory(store, 3)).tokens == 3


async def test_an_episode_without_a_turn_has_failed_whatever_its_agent_says(bench: Bench, store: AsyncEngine) -> None:
    await place_turn(store, await session(store), "a", NewTurn(1), [1])
    run = await end_episode(store, EPISODE, FIRST, WELL)
    assert (run.ended, run.error) == (R.UNKNOWN, "the agent ended without a turn")
    assert await trajectories(store) == [(0, "pending", 0), (1, "failed", 0)]


async def test_what_is_set_aside_is_kept_whole_and_the_episode_is_as_it_was_drawn(
    bench: Bench, store: AsyncEngine
) -> None:
    before = await session(store)
    await converse(bench, store, before)
    await place_turn(store, await other_session(store), "k", NewTurn(0), [1])
    was = await branches_of(store, before)
    await end_episode(store, EPISODE, FIRST, EpisodeOutcome(ended=R.ROLLOUT_ERROR), "no idea")
    await set_aside(store, EPISODE, FIRST)
    assert await trajectories(store) == [(0, "pending", 0), (1, "pending", 0)]
    assert await trajectories(store, FIRST) == [(1, "aborted", 6), (3, "aborted", 3)]
    aside = await find_session(store, RUN, FIRST)
    assert aside is not None
    kept = await branches_of(store, aside)
    assert [branch.token_ids for branch in kept] == [was[0].token_ids, was[1].token_ids[:-1]]
    async with store.connect() as connection:
        query = select(Group.purpose, Group.status, Group.reason).where(Group.group_id == FIRST)
        purpose, status, reason = (await connection.execute(query)).one()
    assert (purpose, status) == ("outside", "aborted")
    assert reason == "an attempt at episode 1 of group 000000 that was given up"
    episode = await read_episode(store, EPISODE)
    assert (episode.outcome, episode.session, episode.sessions) == (None, None, 1)


async def test_a_late_result_of_the_first_attempt_reaches_nothing_of_the_second(
    bench: Bench, store: AsyncEngine
) -> None:
    await converse(bench, store, await session(store))
    await set_aside(store, EPISODE, FIRST)
    first_call = (await read_episode(store, EPISODE)).first_call
    after = await session(store, attempt=2)
    assert after.session_id == SECOND
    assert await known_turns(store, after) == []
    await place_turn(store, after, "a0", NewTurn(1), [40])
    await place_turn(store, after, "b0", NewTurn(3), [50])
    for branch in (1, 3):
        with pytest.raises(StaleAttempt):
            await play(bench, branch, 0, 2)
    with pytest.raises(StaleAttempt):
        await end_episode(store, EPISODE, FIRST, EpisodeOutcome(ended=R.ABORTED))
    await play(bench, 1, 0, first_call)
    assert list(bench.engine.requests[-1].prompt_ids) == [40]
    await place_turn(store, after, "c0", NewTurn(5), [60])  # when the first branch has had calls
    for branch in (3, 5):
        await play(bench, branch, 0, first_call)
    run = await end_episode(store, EPISODE, SECOND, WELL)
    assert (run.ended, run.turns, run.tokens) == (R.FINISHED, 3, 9)


async def other_session(store: AsyncEngine) -> StoredSession:
    name = await open_session(store, NewSession(RUN, GROUP, 0, 2, "other"))
    found = await find_session(store, RUN, name)
    assert found is not None
    assert found.group_id == GroupId(GROUP)
    return found
