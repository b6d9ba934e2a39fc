"""What the coordinator is told of a request's context."""

from datetime import UTC, datetime
from unittest.mock import AsyncMock

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.routing.activities import RoutingActivities
from psrl.activities.routing.contexts import Contexts
from psrl.activities.routing.prefix import prefix_blocks
from psrl.activities.store.codec import encode_ids, encode_logprobs
from psrl.schemas.config import RoutingMethod, RoutingStrategy
from psrl.schemas.config.routing import CacheAwarePolicy
from psrl.schemas.messages.rollout import RouteRequest
from psrl.schemas.status import SegmentKind
from psrl.schemas.tables import Segment, Turn
from tests.support.rollout import GROUP, PROMPT, RUN, add_group

pytestmark = pytest.mark.integration

BY_LENGTH = RoutingStrategy(method=RoutingMethod.THROUGHPUT_OPTIMAL, cost_model_path="cost.json")
BY_PREFIX = RoutingStrategy(method=RoutingMethod.CACHE_AWARE, cache_aware_policy=CacheAwarePolicy(block_size=2))
NOW = datetime.now(UTC)


async def add_turn(store: AsyncEngine, turn: int, end: str | None, *parts: tuple[SegmentKind, list[int]]) -> None:
    """Of trajectory 1."""
    of = {"run_id": RUN, "group_id": GROUP, "index": 1, "turn": turn}
    async with store.begin() as connection:
        await connection.execute(insert(Turn).values(**of, end=end, started_at=NOW, finished_at=end and NOW))
        for seq, (kind, ids) in enumerate(parts):
            sampled = kind is SegmentKind.SAMPLED
            row = {
                "version": 0 if sampled else None,
                "instance": "rollout-0" if sampled else None,
                "logprobs": encode_logprobs([0.0] * len(ids)) if sampled else None,
            }
            what = {"kind": kind, "tokens": len(ids), "token_ids": encode_ids(ids)}
            times = {"started_at": NOW, "finished_at": NOW}
            await connection.execute(insert(Segment).values(**of, **row, **what, **times, seq=seq, fence=1))


def ask(*indices: int, strategy: RoutingStrategy = BY_LENGTH) -> RouteRequest:
    return RouteRequest(run_id=RUN, group_id=GROUP, indices=indices, version_tag=0, strategy=strategy)


@pytest.fixture
async def contexts(store: AsyncEngine) -> Contexts:
    """Trajectory 0 has nothing yet; trajectory 1 is in its second turn."""
    await add_group(store)
    await add_turn(store, 0, "stop", (SegmentKind.SAMPLED, [20, 21, 22]))
    await add_turn(store, 1, None, (SegmentKind.ENVIRONMENT, [30, 31]), (SegmentKind.SAMPLED, [40, 41, 42, 43]))
    return Contexts(store)


async def test_lengths_are_of_each_trajectory_and_tell_what_the_unfinished_turn_has_sampled(contexts: Contexts) -> None:
    filled = await contexts.fill(ask(0, 1))
    assert filled.tokens == (len(PROMPT), len(PROMPT) + 9)
    assert filled.sampled == (0, 4)
    assert filled.blocks == ()


async def test_blocks_are_of_what_all_trajectories_have_in_common(contexts: Contexts) -> None:
    together = await contexts.fill(ask(0, 1, strategy=BY_PREFIX))
    assert together.blocks == prefix_blocks(PROMPT, 2)
    alone = await contexts.fill(ask(1, strategy=BY_PREFIX))
    assert alone.blocks == prefix_blocks([*PROMPT, 20, 21, 22, 30, 31, 40, 41, 42, 43], 2)


async def test_a_strategy_that_looks_at_neither_reads_nothing(contexts: Contexts) -> None:
    coordinator = AsyncMock()
    request = ask(0, strategy=RoutingStrategy())
    await RoutingActivities(coordinator, contexts).place(request)
    coordinator.route.assert_awaited_once_with(request)
