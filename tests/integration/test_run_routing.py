"""Whole runs that route by lengths and tokens, from the store through the coordinator to scripted engines."""

import json
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.schemas.messages.run import RunPhase
from psrl.schemas.tables import Segment
from tests.support.promises import promises_hold
from tests.support.small_stack import OpenStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

COST = {
    "other_threshold": 0.01,
    "other_latency_b": 0.0,
    "other_latency_k": 0.001,
    "attn_latency_b": 0.0,
    "attn_latency_k": 1e-6,
}
WAYS: dict[str, dict[str, Any]] = {
    "budget": {
        "method": "throughput_optimal_with_budget",
        "request_budget": 4,
        "request_sort_indicator": "long_length",
        "enable_multi_priority_queue": True,
    },
    "prefix": {
        "method": "cache_aware_v1",
        "cache_aware_policy": {"block_size": 1},
        "candidate_sort_indicator": "reserve_capability",
        "enable_group_sticky": True,
    },
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_run_ends_and_keeps_its_promises_however_it_routes(
    open_stack: OpenStack, store: AsyncEngine, way: str
) -> None:
    async with open_stack() as small:
        path = small.stack.home / "cost.json"
        path.write_text(json.dumps({"TP1_PP1": COST}))
        routing = {**WAYS[way], "cost_model_path": str(path), "max_concurrent_seqs_per_instance": 4}
        psrl = {"staleness": 1, "rollout_n": 4, "rollout_coordination": {"routing_strategy": routing}}
        result = await small.run(small.config(psrl=psrl))
        assert (result.phase, result.steps) == (RunPhase.DONE, 3)
        assert (await promises_hold(store, small.run_id)).statuses == {"trained": 6}
        reports = [await small.report_of(instance) for instance in small.stack.instances]
    assert {report and report.cost and report.cost.other_threshold for report in reports} == {0.01}
    async with store.connect() as connection:
        rows = await connection.execute(select(Segment.group_id, Segment.instance).distinct())
        groups = [group for group, _ in rows]
    if way == "prefix":
        assert len(groups) == len(set(groups)), "a group stayed on the instance that it began on"
