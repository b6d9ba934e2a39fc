"""Generate calls of several turns against a real store: when they return, what goes on, who may attach."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.ids import GroupId
from psrl.schemas.messages.rollout import GenerateRequest, GenerateResult, SegmentEnd, TrajectoryRef, TurnRequest
from psrl.workers.rollout import calls as calls_module
from tests.support.rollout import (
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
    until,
)
from tests.support.scripted_engine import Script, scripted_tokens

pytestmark = pytest.mark.integration
EIGHT = GroupId("000008")
TOKENS = scripted_tokens(PROMPT, 10)


@pytest.fixture
async def bench(store: AsyncEngine) -> AsyncIterator[Bench]:
    """Tokens come when the test allows them."""
    await add_group(store, trajectories=8, group=EIGHT)
    bench = make_bench(store, Script(manual=True))
    await bench.serve(version=1)
    yield bench
    await bench.calls.close()
    await bench.host.shutdown()


def turn(index: int, number: int = 0) -> TurnRequest:
    ref = TrajectoryRef(run_id=RUN, group_id=EIGHT, index=index)
    return call(index, number).model_copy(update={"trajectory": ref})


def turns(*indices: int, number: int = 0, enough: int | None = None, one_by_one: bool = False) -> GenerateRequest:
    return group_call(*(turn(index, number) for index in indices), enough=enough, one_by_one=one_by_one)


def begin(bench: Bench, request: GenerateRequest, attempt: int = 1) -> "asyncio.Task[GenerateResult]":
    return asyncio.create_task(bench.calls.open(request, attempt).result())


async def abort(bench: Bench, index: int) -> None:
    """As a migration would."""
    (request,) = [r for r in bench.engine.running if r.split("-")[1] == str(index)]
    await bench.engine.abort([request])


def running(bench: Bench) -> list[int]:
    return sorted(int(request.split("-")[1]) for request in bench.engine.running)


async def tokens_came(bench: Bench, tokens: int, turns: int) -> None:
    async def came() -> bool:
        return bench.host.gate.tokens_inside == turns * len(PROMPT) + tokens

    await until(came)


async def ids(store: AsyncEngine, index: int) -> list[int]:
    return ids_of(await stored_segments(store, index, EIGHT))


async def test_one_call_plays_a_whole_group_with_one_look_at_its_prompt(bench: Bench, store: AsyncEngine) -> None:
    whole = begin(bench, turns(*range(8)))
    await bench.engine.until_running(8)
    await bench.engine.allow(80)
    result = await whole
    assert [(t.index, t.end, t.tokens, t.versions) for t in result.turns] == [
        (index, SegmentEnd.LENGTH, 10, (1,)) for index in range(8)
    ]
    assert [await ids(store, index) for index in range(8)] == [TOKENS] * 8
    report = bench.host.report()
    assert (report.received, report.running, report.waiting) == (8, 0, 0)


async def test_one_interrupted_of_eight_is_returned_and_the_next_call_attaches_to_the_others(
    bench: Bench, store: AsyncEngine
) -> None:
    first = begin(bench, turns(*range(8)))
    await bench.engine.until_running(8)
    await abort(bench, 3)
    result = await first
    assert {t.index for t in result.turns if t.end is SegmentEnd.INTERRUPTED} == {3}
    assert {t.index for t in result.turns if t.running} == {0, 1, 2, 4, 5, 6, 7}
    assert running(bench) == [0, 1, 2, 4, 5, 6, 7]
    rest, elsewhere = begin(bench, turns(0, 1, 2, 4, 5, 6, 7, number=1)), begin(bench, turns(3, number=1))
    await bench.engine.until_running(8)
    await bench.engine.allow(80)
    ends = [t.end for t in (*(await rest).turns, *(await elsewhere).turns)]
    assert ends == [SegmentEnd.LENGTH] * 8
    assert len(bench.engine.requests) == 9, "only the interrupted one was asked of the engine again"
    assert [await ids(store, index) for index in range(8)] == [TOKENS] * 8
    assert await refused_results(store) == 0


async def test_what_ended_between_two_calls_is_given_to_the_second(bench: Bench, store: AsyncEngine) -> None:
    first = begin(bench, turns(0, 1, one_by_one=True))
    await bench.engine.until_running(2)
    await abort(bench, 0)
    assert (await first).turns[1].running
    await bench.engine.allow(10)
    await bench.engine.until_running(0)
    (result,) = (await begin(bench, turns(1, number=1))).turns
    assert (result.end, result.new_tokens, result.versions) == (SegmentEnd.LENGTH, 10, (1,))
    assert len(bench.engine.requests) == 2
    assert await ids(store, 1) == TOKENS


async def test_when_enough_have_ended_the_others_leave_the_engine_with_what_they_have(
    bench: Bench, store: AsyncEngine
) -> None:
    whole = begin(bench, turns(0, 1, 2, enough=2))
    await bench.engine.until_running(3)
    await bench.engine.allow(20 + 9)  # in turn: two have ten tokens, one has nine
    result = await whole
    assert sorted(t.tokens for t in result.turns) == [9, 10, 10]
    (left,) = [t for t in result.turns if not t.complete]
    assert left.end is SegmentEnd.INTERRUPTED
    assert bench.engine.running == set()
    assert await ids(store, left.index) == TOKENS[:9]
    await bench.engine.allow(1)
    (spare,) = (await begin(bench, turns(left.index, number=1))).turns
    assert (spare.end, spare.tokens, spare.new_tokens) == (SegmentEnd.LENGTH, 10, 1)


async def test_an_end_is_told_at_once_where_each_counts(bench: Bench) -> None:
    first = begin(bench, turns(0, 1, one_by_one=True))
    await bench.engine.until_running(2)
    await bench.engine.allow(19)
    result = await first
    assert sorted(t.complete for t in result.turns) == [False, True]
    assert [t.running for t in result.turns if not t.complete] == [True]
    assert len(bench.engine.running) == 1


async def test_cancelling_one_disturbs_no_sibling(
    bench: Bench, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is asked for by a call of its own, and the old call cancelled."""
    monkeypatch.setattr(calls_module, "CANCELLED_S", 0.01)
    whole = begin(bench, turns(*range(8)))
    await bench.engine.until_running(8)
    rest = begin(bench, turns(0, 1, 2, 3, 4, 5, 6, number=1))
    await asyncio.sleep(0)
    whole.cancel()
    await bench.engine.until_running(7)
    assert running(bench) == [0, 1, 2, 3, 4, 5, 6]
    await bench.engine.allow(70)
    assert [t.end for t in (await rest).turns] == [SegmentEnd.LENGTH] * 7
    assert len(bench.engine.requests) == 8


async def test_what_an_engine_gave_before_its_new_start_is_stored_and_says_nothing_about_it(bench: Bench) -> None:
    call = begin(bench, turns(0))
    await bench.engine.until_running(1)
    await bench.engine.allow(6)
    await tokens_came(bench, 6, turns=1)
    await bench.host.start(SPEC)
    assert (await call).turns[0].tokens == 6
    assert bench.host.counts.tokens == 0


async def test_a_turn_that_nobody_waits_for_leaves_the_engine_with_what_it_has(
    bench: Bench, store: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "ORPHAN_S", 0.05)
    first = begin(bench, turns(0, 1))
    await bench.engine.until_running(2)
    await abort(bench, 0)
    await bench.engine.until_running(1)
    await bench.engine.allow(6)
    assert (await first).turns[1].running
    await bench.engine.until_running(0)

    async def stored() -> bool:
        return await ids(store, 1) == TOKENS[:6]

    await until(stored)
    await bench.engine.allow(10)
    (result,) = (await begin(bench, turns(1, number=1))).turns
    assert (result.tokens, result.new_tokens) == (10, 4)
    assert await ids(store, 1) == TOKENS


async def test_a_call_that_temporal_repeats_attaches(bench: Bench, store: AsyncEngine) -> None:
    first = begin(bench, turns(0, 1))
    await bench.engine.until_running(2)
    again = begin(bench, turns(0, 1), attempt=2)
    await bench.engine.allow(20)
    assert [t.end for t in (await again).turns] == [SegmentEnd.LENGTH] * 2
    assert [t.end for t in (await first).turns] == [SegmentEnd.LENGTH] * 2
    assert (len(bench.engine.requests), await refused_results(store)) == (2, 0)


async def test_a_call_that_was_overtaken_makes_nothing_leave_the_engine(bench: Bench) -> None:
    """Its answer was given up, and the turns asked for again; it still waits here."""
    lost = begin(bench, turns(0, 1, 2, enough=1))
    await bench.engine.until_running(3)
    newer = begin(bench, turns(0, 1, 2, number=1))
    await asyncio.sleep(0)
    await bench.engine.allow(28)  # in turn: one has ten tokens, two have nine
    await lost
    await bench.engine.allow(2)
    assert [t.end for t in (await newer).turns] == [SegmentEnd.LENGTH] * 3


async def test_a_call_that_was_overtaken_is_refused(bench: Bench) -> None:
    newer = begin(bench, turns(0, number=1))
    await bench.engine.until_running(1)
    (late,) = (await begin(bench, turns(0), attempt=2)).turns
    assert late.failure is not None
    assert (late.failure.type, late.failure.retryable) == ("StaleAttempt", False)
    await bench.engine.allow(10)
    assert (await newer).turns[0].complete


async def test_a_turn_that_was_elsewhere_and_came_back_goes_on_from_what_is_stored(
    bench: Bench, store: AsyncEngine
) -> None:
    """Its first call was lost on the way: the engine here still works on it when the third call comes."""
    lost = begin(bench, turns(0))
    await bench.engine.until_running(1)
    other = make_bench(store, Script(manual=True))
    await other.serve(version=1)
    elsewhere = begin(other, turns(0, number=1))
    await other.engine.until_running(1)
    await other.engine.allow(5)
    await tokens_came(other, 5, turns=1)
    await other.host.pause(RUN, interrupt=True)
    assert (await elsewhere).turns[0].tokens == 5
    back = begin(bench, turns(0, number=2))
    await bench.engine.allow(100)
    (result,) = (await back).turns
    assert (result.end, result.tokens) == (SegmentEnd.LENGTH, 10)
    assert await ids(store, 0) == TOKENS
    assert await refused_results(store) == 1
    await lost
    await other.host.shutdown()


async def test_an_engine_that_dies_fails_every_turn_and_keeps_what_it_gave(bench: Bench, store: AsyncEngine) -> None:
    whole = begin(bench, turns(0, 1))
    await bench.engine.until_running(2)
    await bench.engine.allow(6)
    await tokens_came(bench, 6, turns=2)
    await bench.engine.die()
    failures = [t.failure for t in (await whole).turns]
    assert [(f.type, f.retryable) for f in failures if f] == [("EngineUnavailable", True)] * 2
    assert sum([len(await ids(store, index)) for index in (0, 1)]) == 6


async def test_the_end_of_a_process_leaves_no_turn_behind(bench: Bench, store: AsyncEngine) -> None:
    begun = begin(bench, turns(0, 1))
    await bench.engine.until_running(2)
    await bench.calls.close()
    assert {t.end for t in (await begun).turns} == {SegmentEnd.INTERRUPTED}
    assert bench.engine.running == set()
    assert (await stored_trajectory(store, 0, EIGHT)).status == "pending"
