"""Trajectories of several turns in the store: what a turn answers, what a generate call reads and takes back of it, and
what the trainer reads of the whole."""

import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.generation.turns import TurnStore
from psrl.activities.rewards.samples import read_scorable
from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.activities.store.connections import sync_store
from psrl.activities.training.batch import NO_VERSION, SampledSequence
from psrl.schemas.errors import InvariantViolated, StaleAttempt
from psrl.schemas.messages.rewards import ScoreRequest
from psrl.schemas.messages.rollout import SegmentEnd
from psrl.schemas.tables import Batch, BatchMember, Segment, Trajectory, Turn
from psrl.workers.rollout.generate import InEngine
from psrl.workers.trainer.batches import read_batch
from tests.support.rollout import (
    GROUP,
    INSTANCE,
    PROMPT,
    RUN,
    Bench,
    add_group,
    call,
    ids_of,
    make_bench,
    refused_results,
    stored_segments,
    stored_trajectory,
    stored_turns,
)
from tests.support.scripted_engine import Script, scripted_tokens

pytestmark = pytest.mark.integration

CASES = json.loads((Path(__file__).parents[1] / "cases" / "capture_arrays.json").read_text())
WHOLE = [case for case in CASES if not case["max_trim"] and "error" not in case]
"""Conversations whose every sampled token is still in the context of the next turn."""


class Part(NamedTuple):
    """One segment; without log-probs it is the environment's."""

    ids: list[int]
    logprobs: list[float] | None = None
    version: int = 1


TURNS = (
    (Part([21, 22], [-0.5, -0.3]), Part([23], [math.nan], version=2)),
    (Part([31, 32, 33]), Part([41], [-0.2], version=2)),
)
RESPONSE = [21, 22, 23, 31, 32, 33, 41]


async def add_turn(store: AsyncEngine, turn: int, parts: tuple[Part, ...], end: str | None = "stop") -> None:
    """By hand, of trajectory 0. The last of its segments ends it."""
    key = {"run_id": RUN, "group_id": GROUP, "index": 0, "turn": turn}
    now = datetime.now(UTC)
    times = {"started_at": now, "finished_at": now}
    sampled = sum(len(part.ids) for part in parts if part.logprobs is not None)
    async with store.begin() as connection:
        row = {**key, "tokens": sampled, "end": end, "started_at": now, "finished_at": now if end else None}
        await connection.execute(insert(Turn), row)
        more = update(Trajectory).where(Trajectory.run_id == RUN, Trajectory.group_id == GROUP, Trajectory.index == 0)
        await connection.execute(more.values(tokens=Trajectory.tokens + sampled, fence=turn + 1))
        for seq, part in enumerate(parts):
            row = {**key, "seq": seq, "fence": turn + 1, "tokens": len(part.ids), **times}
            row |= {"token_ids": encode_ids(part.ids), "end": end if seq == len(parts) - 1 else None}
            if part.logprobs is None:
                row |= {"kind": "environment"}
            else:
                logprobs = encode_logprobs(part.logprobs)
                row |= {"version": part.version, "instance": INSTANCE, "logprobs": logprobs}
            await connection.execute(insert(Segment), row)


async def read(store: AsyncEngine, postgres_url: str) -> SampledSequence:
    """Trajectory 0 as the trainer sees it."""
    member = {"run_id": RUN, "group_id": GROUP, "index": 0, "buffer": 0, "version_tag": 0, "staleness": 1}
    async with store.begin() as connection:
        await connection.execute(insert(Batch), {"run_id": RUN, "buffer": 0, "info": {}})
        await connection.execute(insert(BatchMember), member)
        await connection.execute(update(Trajectory).values(status="scored", reward=1.0))
    engine = sync_store(postgres_url)
    try:
        (sequence,) = read_batch(engine, RUN, 1, 0).sequences
    finally:
        engine.dispose()
    return sequence


@pytest.fixture
async def two_turns(store: AsyncEngine) -> AsyncEngine:
    await add_group(store)
    for turn, parts in enumerate(TURNS):
        await add_turn(store, turn, parts)
    return store


@pytest.fixture
async def bench(store: AsyncEngine) -> AsyncIterator[Bench]:
    """One turn is finished, the environment has answered."""
    await add_group(store)
    await add_turn(store, 0, TURNS[0])
    bench = make_bench(store, Script())
    await bench.serve(version=2)
    yield bench
    await bench.host.shutdown()


async def test_ids_log_probs_versions_and_mask_of_several_turns_are_of_one_length(
    two_turns: AsyncEngine, postgres_url: str
) -> None:
    sequence = await read(two_turns, postgres_url)
    assert sequence.prompt_tokens == len(PROMPT)
    assert sequence.ids.tolist() == [*PROMPT, *RESPONSE]
    assert sequence.mask.tolist() == [True, True, True, False, False, False, True]
    assert sequence.versions.tolist() == [1, 1, 2, NO_VERSION, NO_VERSION, NO_VERSION, 2]
    nan = math.nan
    expected = torch.tensor([-0.5, -0.3, nan, nan, nan, nan, -0.2])
    torch.testing.assert_close(sequence.rollout, expected, equal_nan=True)
    assert not sequence.truncated


async def test_a_trajectory_whose_last_turn_was_cut_by_its_length_is_truncated(
    store: AsyncEngine, postgres_url: str
) -> None:
    await add_group(store)
    await add_turn(store, 0, TURNS[0])
    await add_turn(store, 1, TURNS[1], end="length")
    assert (await read(store, postgres_url)).truncated


@pytest.mark.parametrize("case", WHOLE, ids=[case["name"] for case in WHOLE])
async def test_what_a_session_captured_reaches_the_trainer_with_its_mask(
    store: AsyncEngine, postgres_url: str, case: dict[str, Any]
) -> None:
    await add_group(store, prompt=case["prompt_ids"])
    before = len(case["prompt_ids"])
    for turn, record in enumerate(case["records"]):
        given = case["accumulated"][before : record["prompt_tokens"]]
        environment = (Part(given),) if given else ()
        await add_turn(store, turn, (*environment, Part(record["output"], record["logprobs"])))
        before = record["prompt_tokens"] + len(record["output"])
    sequence = await read(store, postgres_url)
    assert sequence.ids.tolist() == [*case["prompt_ids"], *case["response_ids"]]
    assert sequence.mask.int().tolist() == case["mask"]
    wanted = [value for record in case["records"] for value in record["logprobs"]]
    torch.testing.assert_close(sequence.rollout[sequence.mask], torch.tensor(wanted, dtype=torch.float32))


async def test_a_reward_sees_every_turn_and_what_the_environment_said(two_turns: AsyncEngine) -> None:
    async with two_turns.begin() as connection:
        await connection.execute(update(Trajectory).values(status="finished"))
        request = ScoreRequest(run_id=RUN, group_id=GROUP, indices=(0,), episodes=1)
        (found,) = await read_scorable(connection, request)
    assert found.response_ids == RESPONSE
    assert [(turn.environment, turn.policy) for turn in found.turns] == [([], [21, 22, 23]), ([31, 32, 33], [41])]


async def test_a_later_turn_goes_on_from_all_that_was_said_before(bench: Bench, store: AsyncEngine) -> None:
    await add_turn(store, 1, (TURNS[1][0],), end=None)
    result = await bench.generator.generate(call(number=1).model_copy(update={"turn": 1}), 1, InEngine())
    assert (result.end, result.tokens) == (SegmentEnd.LENGTH, 10)
    context = [*PROMPT, *RESPONSE[:-1]]
    assert list(bench.engine.requests[-1].prompt_ids) == context
    segments = await stored_segments(store)
    assert ids_of(segments) == [*RESPONSE[:-1], *scripted_tokens(context, 10)]
    assert [(turn.tokens, turn.end) for turn in await stored_turns(store)] == [(3, "stop"), (10, "length")]
    assert (await stored_trajectory(store)).tokens == 13


async def test_the_context_of_a_turn_leaves_out_what_the_turn_has_sampled_itself(two_turns: AsyncEngine) -> None:
    turns = TurnStore(two_turns)
    contexts = [(await turns.claim(call().model_copy(update={"turn": turn}), 5)).context for turn in range(3)]
    assert contexts == [RESPONSE[:end] for end in (0, 6, 7)]
    assert await turns.prompt(call().trajectory) == PROMPT


async def test_a_turn_that_is_begun_anew_keeps_what_the_environment_said(bench: Bench, store: AsyncEngine) -> None:
    await add_turn(store, 1, TURNS[1], end=None)
    request = call(number=1).model_copy(update={"turn": 1})
    turns = TurnStore(store)
    claimed = await turns.claim(request, 5)
    assert (claimed.token_ids, claimed.segments, claimed.version, claimed.end) == ([41], 2, 2, None)
    anew = await turns.begin_anew(request, 5)
    assert (anew.token_ids, anew.segments, anew.version, anew.end) == ([], 1, None, None)
    assert ids_of(await stored_segments(store)) == RESPONSE[:-1]
    assert [turn.tokens for turn in await stored_turns(store)] == [3, 0]
    assert (await stored_trajectory(store)).tokens == 3


async def test_only_the_newest_attempt_can_claim_a_trajectory_and_begin_its_turn_anew(store: AsyncEngine) -> None:
    await add_group(store)
    await add_turn(store, 0, TURNS[0], end=None)
    turns = TurnStore(store)
    assert (await turns.claim(call(), 5)).token_ids == RESPONSE[:3]
    assert (await turns.claim(call(), 5)).segments == 2, "a repeated claim is the same claim"
    late = [turns.claim(call(), 4), turns.begin_anew(call(), 4), turns.begin_anew(call(), 6)]
    for number, attempt in enumerate(late, start=1):
        with pytest.raises(StaleAttempt, match="belongs to attempt 5"):
            await attempt
        assert await refused_results(store) == number
    assert ids_of(await stored_segments(store)) == RESPONSE[:3]
    assert (await stored_trajectory(store)).fence == 5


@pytest.mark.parametrize("turn", [1, 2])
async def test_a_turn_is_refused_until_those_before_it_have_ended(store: AsyncEngine, turn: int) -> None:
    await add_group(store)
    await add_turn(store, 0, TURNS[0], end=None)
    with pytest.raises(InvariantViolated, match=f"turn {turn} is asked for before those before it have ended"):
        await TurnStore(store).claim(call().model_copy(update={"turn": turn}), 5)
