"""Generate calls against a real store: what is stored, who may store, and what a repeated or interrupted call does."""

import asyncio
import functools
import itertools
import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from psrl.schemas.errors import EngineUnavailable, InvariantViolated, StaleAttempt
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.rollout import HoldRequest, SegmentEnd, TrajectoryRef, TurnRequest, TurnResult
from psrl.workers.rollout import calls as calls_module
from psrl.workers.rollout import generate as generate_module
from psrl.workers.rollout.activities import RolloutActivities
from psrl.workers.rollout.generate import InEngine
from tests.support.rollout import (
    INSTANCE,
    PROMPT,
    RUN,
    SPEC,
    Bench,
    add_group,
    call,
    group_call,
    ids_of,
    make_bench,
    refused_results,
    stored_segments,
    stored_trajectory,
    stored_turns,
    until,
)
from tests.support.scripted_engine import STOP_ID, Script, logprob_at, scripted_tokens

pytestmark = pytest.mark.integration
TOKENS = scripted_tokens(PROMPT, 10)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
async def bench(store: AsyncEngine, script: Script) -> AsyncIterator[Bench]:
    await add_group(store)
    bench = make_bench(store, script)
    await bench.serve(version=1)
    yield bench
    await bench.host.shutdown()


async def run(bench: Bench, request: TurnRequest, attempt: int = 1) -> TurnResult:
    return await bench.generator.generate(request, attempt, InEngine())


async def test_a_finished_turn_is_stored_with_ids_logprobs_and_version(bench: Bench, store: AsyncEngine) -> None:
    result = await run(bench, call())
    assert result == TurnResult(index=0, end=SegmentEnd.LENGTH, tokens=10, new_tokens=10, versions=(1,))
    segments = await stored_segments(store)
    assert [len(segment.ids) for segment in segments] == [4, 4, 2]
    assert ids_of(segments) == TOKENS
    context = [*PROMPT, *TOKENS]
    assert [value for segment in segments for value in segment.logprobs] == [
        logprob_at(context[i - 1], i) for i in range(len(PROMPT), len(context))
    ]
    assert [(segment.seq, segment.version, segment.fence, segment.end) for segment in segments] == [
        (0, 1, 1, None),
        (1, 1, 1, None),
        (2, 1, 1, "length"),
    ]
    assert all(segment.started_at <= segment.finished_at for segment in segments)
    trajectory = await stored_trajectory(store)
    assert (trajectory.status, trajectory.tokens, trajectory.fence) == ("finished", 10, 1)
    assert trajectory.finished_at is not None
    [turn] = await stored_turns(store)
    assert (turn.turn, turn.tokens, turn.end) == (0, 10, "length")
    assert (turn.started_at, turn.finished_at) == (segments[0].started_at, segments[-1].finished_at)


async def test_a_stop_token_ends_the_turn_and_is_part_of_it(bench: Bench, script: Script, store: AsyncEngine) -> None:
    script.stop_after = 5
    result = await run(bench, call())
    assert (result.end, result.tokens) == (SegmentEnd.STOP, 3)
    [segment] = await stored_segments(store)
    assert (segment.ids, segment.end) == ([*scripted_tokens(PROMPT, 2), STOP_ID], "stop")


async def test_a_repeated_call_returns_the_stored_answer_and_samples_nothing(bench: Bench, store: AsyncEngine) -> None:
    first = await run(bench, call())
    for number, attempt in ((0, 2), (3, 1)):
        again = await run(bench, call(number=number), attempt)
        assert (again.end, again.tokens, again.new_tokens) == (first.end, first.tokens, 0)
    assert len(bench.engine.requests) == 1
    assert len(await stored_segments(store)) == 3


async def test_a_workflow_that_was_reset_gets_the_stored_answer(bench: Bench, store: AsyncEngine) -> None:
    first = await run(bench, call())
    again = await run(bench, call())
    assert (again.end, again.tokens, again.new_tokens) == (first.end, 10, 0)
    assert (len(await stored_segments(store)), await refused_results(store)) == (3, 0)


@pytest.mark.parametrize("same", [False, True], ids=["under another version", "under the same version"])
async def test_without_partial_rollout_no_trajectory_mixes_versions(
    bench: Bench, script: Script, store: AsyncEngine, same: bool
) -> None:
    """slime PR#2092: what was sampled under another version is begun anew from the prompt, again and again."""
    script.manual = True
    for number, tokens in enumerate((6, 7)):
        begun = asyncio.create_task(run(bench, call(number=number).model_copy(update={"one_version": True})))
        await bench.engine.until_running(1)
        await bench.engine.allow(tokens)
        await until(lambda tokens=tokens: _count(bench, tokens))  # type: ignore[misc]
        await (bench.sync(version=1) if same else bench.sync(version=number + 2))
        assert (await begun).end is SegmentEnd.INTERRUPTED
        if same:
            break
    await bench.engine.allow(100)
    last = await run(bench, call(number=2).model_copy(update={"one_version": True}))
    assert (last.end, last.tokens) == (SegmentEnd.LENGTH, 10)
    segments = await stored_segments(store)
    assert ids_of(segments) == TOKENS
    assert {segment.version for segment in segments} == ({1} if same else {3})
    assert [segment.seq for segment in segments] == list(range(len(segments)))
    prompt_only = [list(request.prompt_ids) == PROMPT for request in bench.engine.requests]
    assert prompt_only == ([True, False] if same else [True, True, True])
    assert (await stored_trajectory(store)).tokens == 10


async def test_an_interruption_stores_the_tokens_and_the_next_call_goes_on(
    bench: Bench, script: Script, store: AsyncEngine
) -> None:
    script.manual = True
    first = asyncio.create_task(run(bench, call(seed=5)))
    await bench.engine.until_running(1)
    await bench.engine.allow(6)
    await until(lambda: _count(bench, 6))
    await bench.sync(version=2)
    interrupted = await first
    assert (interrupted.end, interrupted.tokens, interrupted.new_tokens, interrupted.versions) == (
        SegmentEnd.INTERRUPTED,
        6,
        6,
        (1,),
    )
    assert (await stored_trajectory(store)).status == "pending"
    await bench.engine.allow(100)
    second = await run(bench, call(number=1, seed=5))
    assert (second.end, second.tokens, second.new_tokens, second.versions) == (SegmentEnd.LENGTH, 10, 4, (2,))
    segments = await stored_segments(store)
    assert ids_of(segments) == TOKENS
    assert [(segment.seq, segment.version, segment.end) for segment in segments] == [
        (0, 1, None),
        (1, 1, None),
        (2, 2, "length"),
    ]
    one, two = bench.engine.requests
    assert (list(two.prompt_ids), two.sampling.max_tokens) == ([*PROMPT, *TOKENS[:6]], 4)
    assert one.cache_salt != two.cache_salt
    assert one.sampling.seed == 5 != two.sampling.seed
    assert (await stored_trajectory(store)).tokens == 10


@pytest.mark.parametrize(("cached_tokens", "kept"), [(0, False), (len(PROMPT), False), (len(PROMPT) + 6, True)])
async def test_the_first_row_of_a_continuation_says_whether_the_engine_had_kept_its_kv(
    bench: Bench, script: Script, store: AsyncEngine, cached_tokens: int, kept: bool
) -> None:
    script.manual = True
    first = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    await bench.engine.allow(3)
    await until(lambda: _count(bench, 3))
    await bench.sync(version=2)
    await first
    script.cached_tokens = cached_tokens
    await bench.engine.allow(100)
    await run(bench, call(number=1))
    async with store.connect() as connection:
        found = await connection.scalars(text("SELECT kv_kept FROM segments ORDER BY seq"))
    assert list(found) == [None, kept, None]


async def _count(bench: Bench, tokens: int) -> bool:
    return bench.host.gate.tokens_inside == len(PROMPT) + tokens


async def test_interrupted_before_the_first_token_stores_nothing(
    bench: Bench, script: Script, store: AsyncEngine
) -> None:
    script.manual = True
    first = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    await bench.host.pause(RUN, interrupt=True)
    result = await first
    assert (result.end, result.tokens, result.versions) == (SegmentEnd.INTERRUPTED, 0, ())
    assert await stored_segments(store) == []
    await bench.sync(version=2)
    await bench.engine.allow(100)
    await run(bench, call(number=1))
    assert {segment.version for segment in await stored_segments(store)} == {2}, "field report 31: none without"


async def test_a_drain_lets_running_turns_finish(bench: Bench, script: Script) -> None:
    script.manual = True
    running = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    drain = asyncio.create_task(bench.host.pause(RUN, interrupt=False))
    await asyncio.sleep(0.05)
    assert not drain.done()
    await bench.engine.allow(10)
    assert (await running).end is SegmentEnd.LENGTH
    await drain


async def test_a_drain_sends_what_is_queued_elsewhere_at_once(bench: Bench, store: AsyncEngine, script: Script) -> None:
    script.manual = True
    group = GroupId("000001")
    await add_group(store, trajectories=SPEC.max_num_seqs + 1, group=group)
    running = []
    for index in range(SPEC.max_num_seqs + 1):
        ref = TrajectoryRef(run_id=RUN, group_id=group, index=index)
        running.append(asyncio.create_task(run(bench, call().model_copy(update={"trajectory": ref}))))
        await bench.engine.until_running(index + 1)
    drain = asyncio.create_task(bench.host.pause(RUN, interrupt=False))
    async with asyncio.timeout(60):
        assert (await running[-1]).end is SegmentEnd.INTERRUPTED
    assert not any(task.done() for task in [drain, *running[:-1]])
    await bench.engine.allow(10 * SPEC.max_num_seqs)
    assert {result.end for result in await asyncio.gather(*running[:-1])} == {SegmentEnd.LENGTH}
    await drain


async def test_a_shut_gate_sends_the_request_elsewhere(
    bench: Bench, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_module, "GATE_PATIENCE_S", 0.05)
    await bench.host.pause(RUN, interrupt=True)
    result = await run(bench, call())
    assert (result.end, result.new_tokens, bench.engine.requests) == (SegmentEnd.INTERRUPTED, 0, [])


async def test_a_version_below_the_tag_never_samples(bench: Bench) -> None:
    with pytest.raises(EngineUnavailable, match="version 2 is needed"):
        await run(bench, call(tag=2))
    assert bench.engine.requests == []


async def test_a_late_attempt_is_refused_counted_and_aborted(bench: Bench, script: Script, store: AsyncEngine) -> None:
    """Field report 21: exactly one of the two results is accepted, the other is counted."""
    script.manual = True
    late = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    newer = asyncio.create_task(run(bench, call(number=1)))
    await bench.engine.until_running(2)
    await bench.engine.allow(100)
    assert (await newer).tokens == 10
    with pytest.raises(StaleAttempt, match="belongs to attempt 1000001; the result of attempt 1 is refused"):
        await late
    assert bench.engine.running == set()
    assert await refused_results(store) == 1
    segments = await stored_segments(store)
    assert {segment.fence for segment in segments} == {1_000_001}
    assert ids_of(segments) == TOKENS
    with pytest.raises(StaleAttempt):
        await run(bench, call(number=0), attempt=2)
    assert await refused_results(store) == 2


async def test_a_crash_loses_no_more_than_flush_tokens(bench: Bench, script: Script, store: AsyncEngine) -> None:
    script.manual = True
    crashing = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    await bench.engine.allow(7)
    await until(lambda: _count(bench, 7))
    crashing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await crashing
    assert bench.engine.running == set()
    assert sum(len(segment.ids) for segment in await stored_segments(store)) == 4
    await bench.engine.allow(100)
    result = await run(bench, call(number=1))
    assert (result.end, result.tokens, result.new_tokens) == (SegmentEnd.LENGTH, 10, 6)
    assert ids_of(await stored_segments(store)) == TOKENS


async def test_what_an_engine_gave_before_it_died_is_kept(bench: Bench, script: Script, store: AsyncEngine) -> None:
    script.manual = True
    dying = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    await bench.engine.allow(6)
    await until(lambda: _count(bench, 6))
    await bench.engine.die()
    with pytest.raises(EngineUnavailable):
        await dying
    assert ids_of(await stored_segments(store)) == TOKENS[:6]


async def test_a_stored_prefix_that_fills_the_budget_only_needs_its_end(bench: Bench, store: AsyncEngine) -> None:
    await run(bench, call(max_tokens=10))
    async with store.begin() as connection:
        await connection.execute(text("""UPDATE segments SET "end" = NULL"""))
        await connection.execute(text("""UPDATE turns SET "end" = NULL, finished_at = NULL"""))
        await connection.execute(text("""UPDATE trajectories SET status = 'pending'"""))
    result = await run(bench, call(number=1, max_tokens=10))
    assert (result.end, result.tokens, result.new_tokens) == (SegmentEnd.LENGTH, 10, 0)
    assert (await stored_trajectory(store)).status == "finished"
    assert len(bench.engine.requests) == 1


async def test_many_calls_are_stored_in_few_transactions_and_refusals_harm_no_other(
    bench: Bench, store: AsyncEngine
) -> None:
    other = GroupId("000001")
    await add_group(store, trajectories=64, group=other)
    await run(bench, call(number=5, index=0))
    requests = [call(), *(_of(call(index), other) for index in range(64))]
    results = await asyncio.gather(*(run(bench, request) for request in requests), return_exceptions=True)
    assert [type(result) for result in results[:1]] == [StaleAttempt]
    assert all(isinstance(result, TurnResult) and result.tokens == 10 for result in results[1:])
    for index in (0, 63):
        assert ids_of(await stored_segments(store, index, other)) == TOKENS


def _of(request: TurnRequest, group: GroupId) -> TurnRequest:
    return request.model_copy(update={"trajectory": request.trajectory.model_copy(update={"group_id": group})})


async def test_a_given_up_trajectory_stays_given_up(bench: Bench, store: AsyncEngine) -> None:
    async with store.begin() as connection:
        await connection.execute(text("UPDATE trajectories SET status = 'aborted'"))
    await run(bench, call())
    assert (await stored_trajectory(store)).status == "aborted"


async def test_an_unknown_trajectory_is_named(bench: Bench) -> None:
    with pytest.raises(InvariantViolated, match="run-1/000000/7 is not in the store"):
        await run(bench, call(index=7))


async def test_the_prompt_of_a_later_turn_is_not_invented(bench: Bench) -> None:
    with pytest.raises(InvariantViolated, match="turn 1 is asked for before those before it have ended"):
        await run(bench, call().model_copy(update={"turn": 1}))


async def test_a_store_that_went_away_is_waited_for(bench: Bench, store: AsyncEngine, script: Script) -> None:
    script.manual = True
    running = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    async with store.begin() as connection:
        mine = await connection.scalar(text("SELECT pg_backend_pid()"))
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> :m"
            ),
            {"m": mine},
        )
    await bench.engine.allow(100)
    assert (await running).tokens == 10
    assert ids_of(await stored_segments(store)) == TOKENS


async def test_a_clock_that_jumps_changes_neither_rows_nor_durations(
    bench: Bench, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour forward whenever somebody asks: no row is due for that, and none took an hour."""
    jumps = itertools.count()
    clocks = SimpleNamespace(time=lambda: time.time() + 3600 * next(jumps), monotonic=time.monotonic)
    monkeypatch.setattr(generate_module, "time", clocks)
    await run(bench, call())
    segments = await stored_segments(store)
    assert [len(segment.ids) for segment in segments] == [4, 4, 2]
    assert all(timedelta(0) <= segment.finished_at - segment.started_at < MINUTE for segment in segments)


async def test_a_refused_row_is_counted_although_its_caller_is_gone(
    bench: Bench, script: Script, store: AsyncEngine
) -> None:
    """A zombie learns from its heartbeat that it is one while its last row is on the way to the store."""
    script.manual = True
    zombie = asyncio.create_task(run(bench, call()))
    await bench.engine.until_running(1)
    newer = asyncio.create_task(run(bench, call(number=1)))
    await bench.engine.until_running(2)
    writer = bench.generator._writer
    store_all = writer._store_all

    async def slowly(rows: list[Any], retried: bool) -> Any:
        if any(row.fence == 1 for row in rows):
            zombie.cancel()
        return await store_all(rows, retried)

    writer._store_all = slowly  # type: ignore[method-assign]
    await bench.engine.allow(100)
    assert (await newer).tokens == 10
    with pytest.raises(asyncio.CancelledError):
        await zombie
    await writer.close()
    assert await refused_results(store) == 1
    assert ids_of(await stored_segments(store)) == TOKENS


@pytest.mark.parametrize(("flush_tokens", "chunk"), [(1, 1), (4, 1), (64, 8), (100, 12), (256, 32), (4096, 32)])
def test_no_more_than_flush_tokens_are_at_risk_with_an_engine_that_holds_a_chunk_back(
    flush_tokens: int, chunk: int
) -> None:
    """Sampled and not stored: up to a row, a chunk that is being added to it, and one inside the engine."""
    assert generate_module._chunk_tokens(flush_tokens) == chunk
    row = generate_module._row_tokens(flush_tokens, chunk)
    assert row >= 1
    assert (row - 1) + chunk + (chunk - 1) <= flush_tokens


async def test_a_row_whose_commit_was_not_acknowledged_is_not_stored_twice(bench: Bench, store: AsyncEngine) -> None:
    writer = bench.generator._writer
    settle = writer._store_all

    async def twice(batch: list[Any], retried: bool) -> Any:
        await settle(batch, retried)
        return await settle(batch, True)

    writer._store_all = twice  # type: ignore[method-assign]
    assert (await run(bench, call())).tokens == 10
    assert ids_of(await stored_segments(store)) == TOKENS
    assert not any(math.isnan(value) for segment in await stored_segments(store) for value in segment.logprobs)


# --- as Temporal sees it ---------------------------------------------------------------------------------------------


def activities(bench: Bench) -> RolloutActivities:
    return RolloutActivities(bench.host, bench.calls, asyncio.Event())


async def test_the_activity_gives_a_stale_attempt_as_a_fatal_failure_of_its_turn(bench: Bench) -> None:
    await run(bench, call(number=1))
    environment = ActivityEnvironment()
    result = await environment.run(activities(bench).generate, group_call(call(0), call(1)))
    stale, sibling = result.turns
    assert stale.failure is not None
    assert (stale.failure.type, stale.failure.retryable) == ("StaleAttempt", False)
    assert (sibling.end, sibling.failure) == (SegmentEnd.LENGTH, None)


async def test_cancelling_the_activity_reaches_the_engine_and_nothing_sampled_is_lost(
    bench: Bench, script: Script, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "CANCELLED_S", 0.01)
    script.manual = True
    environment = ActivityEnvironment()
    task = asyncio.create_task(environment.run(activities(bench).generate, group_call(call())))
    await bench.engine.until_running(1)
    await bench.engine.allow(5)
    await until(lambda: _count(bench, 5))
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await bench.engine.until_running(0)

    async def all_stored() -> bool:
        return sum(len(segment.ids) for segment in await stored_segments(store)) == 5

    await until(all_stored)
    assert bench.host.report().waiting == 0


def lease(left: timedelta, clock_is_ahead: timedelta = timedelta(0)) -> ActivityEnvironment:
    """Of an activity that the server started just now by its own clock."""
    environment = ActivityEnvironment()
    now = datetime.now(UTC) - clock_is_ahead
    times = {"scheduled_time": now, "started_time": now, "schedule_to_close_timeout": left}
    environment.info = replace(environment.info, **times)
    return environment


async def test_a_lease_is_returned_in_time_and_fails_when_the_engine_dies(bench: Bench) -> None:
    beats: asyncio.Queue[Any] = asyncio.Queue()
    environment = lease(MINUTE)
    environment.on_heartbeat = lambda *details: beats.put_nowait(details)
    command = HoldRequest(run_id=RUN, instance=INSTANCE)
    await lease(MINUTE / 20).run(activities(bench).hold_engine, command)
    task = asyncio.create_task(environment.run(activities(bench).hold_engine, command))
    await beats.get()
    await bench.engine.die()
    with pytest.raises(ApplicationError, match="the engine died") as caught:
        await asyncio.wait_for(task, 60)
    assert (caught.value.type, caught.value.non_retryable) == ("EngineUnavailable", False)


async def test_a_lease_does_not_depend_on_the_clock_of_this_machine(bench: Bench) -> None:
    """Ahead of the server's, it would end every lease at once, and the workflow would take the next without a pause."""
    command = HoldRequest(run_id=RUN, instance=INSTANCE)
    for ahead in (timedelta(hours=1), timedelta(hours=-1)):
        beats: asyncio.Queue[Any] = asyncio.Queue()
        environment = lease(MINUTE, ahead)
        environment.on_heartbeat = functools.partial(beats.put_nowait, None)
        task = asyncio.create_task(environment.run(activities(bench).hold_engine, command))
        for _ in range(2):
            await asyncio.wait_for(beats.get(), 5)
        assert not task.done()
        environment.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await lease(MINUTE / 20, ahead).run(activities(bench).hold_engine, command)
