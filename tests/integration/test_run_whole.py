"""Whole runs over real PostgreSQL, Temporal, coordinator and trainer, with scripted engines: the promises, read from
the store after each."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from psrl.schemas.messages.run import RunPhase
from psrl.schemas.stack import Stack
from psrl.workers.orchestrator import WORKFLOWS
from tests.support.promises import Kept, promises_hold
from tests.support.small_stack import SmallStack, small_stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

Open = Callable[..., AbstractAsyncContextManager[SmallStack]]


@pytest.fixture
def open_stack(temporal_client: Client, stack: Stack, store: AsyncEngine, tiny_model_dir: Path) -> Open:
    return lambda **options: small_stack(temporal_client, stack, store, tiny_model_dir, **options)


def psrl_section(small: SmallStack, **values: Any) -> dict[str, Any]:
    return {**small.config()["psrl"], **values}


@pytest.mark.parametrize(("eta", "group_size"), [(0, 1), (1, 4), (2, 8)])
async def test_a_run_keeps_its_promises(open_stack: Open, store: AsyncEngine, eta: int, group_size: int) -> None:
    async with open_stack() as small:
        algorithm = {"norm_adv_by_std_in_grpo": group_size > 1}
        config = small.config(psrl=psrl_section(small, staleness=eta, rollout_n=group_size), algorithm=algorithm)
        result = await small.run(config)
        assert (result.phase, result.steps, result.version) == (RunPhase.DONE, 3, 3)
        kept = await promises_hold(store, small.run_id)
    assert (kept.batches, kept.trained_groups) == (3, 3 * 2)
    assert kept.statuses == {"trained": 6}, "every drawn group was needed"
    assert max(kept.ages) <= eta
