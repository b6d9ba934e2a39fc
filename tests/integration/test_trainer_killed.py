"""The trainer's real process, ended by SIGKILL in the middle of an update."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from sqlalchemy import Engine, select
from temporalio.client import ActivityHandle, Client

from psrl.activities import signatures
from psrl.activities.store.engine import sync_engine
from psrl.schemas.ids import TRAINER_QUEUE, RunId
from psrl.schemas.messages.training import PublishResult, StepRequest
from psrl.schemas.stack import HOME_VARIABLE, Stack
from psrl.schemas.tables import WeightVersion
from psrl.schemas.weights import WeightManifest
from psrl.workers.trainer.stages import Stages
from psrl.workers.trainer.world import World
from tests.support.tiny_model import make_tiny_model
from tests.support.training import fill_run, run_values, synthetic_batch

pytestmark = pytest.mark.integration

STEPS = 3
LONG_STEP = 1
"""Whose update is interrupted: its batch takes seconds."""


@contextmanager
def trainer_process(stack: Stack) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {HOME_VARIABLE: str(stack.home), "OMP_NUM_THREADS": "1"}
    with (stack.home / "trainer.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "psrl.workers.trainer.main"], stdout=output, stderr=output, env=environment
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


async def start_publish(client: Client, buffer: int) -> ActivityHandle[PublishResult]:
    return await client.start_activity(
        signatures.publish,
        StepRequest(run_id=RunId("rough"), buffer=buffer),
        id=f"publish-{buffer}",
        task_queue=TRAINER_QUEUE,
        schedule_to_close_timeout=timedelta(seconds=90),
        heartbeat_timeout=timedelta(seconds=5),
    )


async def started(handle: ActivityHandle[PublishResult]) -> None:
    while (await handle.describe()).last_started_time is None:  # noqa: ASYNC110 (the server tells only when asked)
        await asyncio.sleep(0.05)


def checksums(engine: Engine, run: str) -> list[list[str]]:
    query = select(WeightVersion.manifest).where(WeightVersion.run_id == run).order_by(WeightVersion.version)
    with engine.connect() as connection:
        manifests = [WeightManifest.model_validate(row) for row in connection.execute(query).scalars()]
    return [[shard.sha256 for shard in manifest.shards] for manifest in manifests]


@pytest.mark.timeout(180)
async def test_a_trainer_killed_in_mid_update_publishes_the_same_bits(
    stack: Stack, temporal_client: Client, tmp_path: Path
) -> None:
    engine = sync_engine(stack.postgres_url)
    values = run_values(model={"path": str(make_tiny_model(tmp_path / "model"))}, actor={"ppo_epochs": 10})
    batches = [synthetic_batch(64 if step == LONG_STEP else 4, 4, seed=step) for step in range(STEPS)]
    for run in ("calm", "rough"):
        fill_run(engine, run, values, batches)
    stages = Stages(stack, engine, World(), torch.device("cpu"))
    for buffer in range(STEPS):
        await asyncio.to_thread(stages.publish, RunId("calm"), buffer)

    with trainer_process(stack) as process:
        await (await start_publish(temporal_client, 0)).result()
        interrupted = await start_publish(temporal_client, LONG_STEP)
        await started(interrupted)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(checksums(engine, "rough")) == LONG_STEP
    with trainer_process(stack) as process:
        assert (await interrupted.result()).version == LONG_STEP + 1
        await (await start_publish(temporal_client, 2)).result()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert checksums(engine, "rough") == checksums(engine, "calm")
    assert "replaying batches 0 to 0" in (stack.home / "trainer.log").read_text()
    engine.dispose()
