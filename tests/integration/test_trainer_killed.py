"""The trainer's real process, ended by SIGKILL at named points of its work."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from sqlalchemy import Engine, select
from temporalio.client import ActivityHandle, Client
from temporalio.common import RetryPolicy

from psrl.activities import signatures
from psrl.activities.store.connections import sync_store
from psrl.schemas.ids import TRAINER_QUEUE, RunId
from psrl.schemas.messages.training import CheckpointRequest, StepRequest
from psrl.schemas.stack import HOME_VARIABLE, Stack
from psrl.schemas.tables import WeightVersion
from psrl.schemas.weights import WeightManifest
from psrl.workers.trainer.backends import backends
from psrl.workers.trainer.opening import trainer_stages
from psrl.workers.trainer.world import World
from tests.support.tiny_model import make_tiny_model
from tests.support.training import fill_run, run_values, synthetic_batch

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
STEPS = 5
LONG_STEP = 1
"""Whose update is interrupted from outside: its batch takes seconds."""
SAVED = (0, 1, 3)
"""Buffers after which a checkpoint is asked for."""
PATIENCE_S = 300
"""For a process to start, which on a busy machine takes most of a minute, and to come to the point where it dies."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the trainer's process has: sums over several threads round in another way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def trainer_process(stack: Stack, dies_at: str = "") -> Iterator[subprocess.Popen[bytes]]:
    module = "tests.support.mortal_trainer" if dies_at else "psrl.workers.trainer.main"
    ours = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "src")))
    environment = os.environ | {HOME_VARIABLE: str(stack.home), "OMP_NUM_THREADS": "1", "PYTHONPATH": ours}
    with (stack.home / "trainer.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *([dies_at] if dies_at else [])],
            stdout=output,
            stderr=output,
            env=environment,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Steps:
    """The stages of one run's steps as activities of the trainer's process; keeps each update's result."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.losses: dict[int, float] = {}

    async def start(self, stage: Callable[..., Any], buffer: int) -> ActivityHandle[Any]:
        request = StepRequest(run_id=RunId("rough"), buffer=buffer)
        if stage is signatures.checkpoint:
            request = CheckpointRequest(run_id=request.run_id, buffer=buffer)
        return await self._client.start_activity(
            stage,
            request,
            id=f"{stage.__name__}-{buffer}",
            task_queue=TRAINER_QUEUE,
            schedule_to_close_timeout=timedelta(seconds=PATIENCE_S),
            heartbeat_timeout=timedelta(seconds=5),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
        )

    async def whole(self, buffer: int) -> None:
        updated = await (await self.start(signatures.update, buffer)).result()
        self.losses[buffer] = updated.loss
        assert (await (await self.start(signatures.publish, buffer)).result()).version == buffer + 1
        if buffer in SAVED:
            await (await self.start(signatures.checkpoint, buffer)).result()


async def started(handle: ActivityHandle[Any]) -> None:
    while (await handle.describe()).last_started_time is None:  # noqa: ASYNC110 (the server tells only when asked)
        await asyncio.sleep(0.05)


async def died(process: subprocess.Popen[bytes]) -> None:
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == -signal.SIGKILL


def checksums(engine: Engine, run: str) -> list[list[str]]:
    query = select(WeightVersion.manifest).where(WeightVersion.run_id == run).order_by(WeightVersion.version)
    with engine.connect() as connection:
        manifests = [WeightManifest.model_validate(row) for row in connection.execute(query).scalars()]
    return [[shard.digest for shard in manifest.shards] for manifest in manifests]


@pytest.mark.timeout(600)
async def test_a_run_whose_trainer_is_killed_at_five_points_has_the_losses_and_the_weights_of_one_undisturbed(
    stack: Stack, temporal_client: Client, tmp_path: Path
) -> None:
    engine = sync_store(stack.postgres_url)
    values = run_values(model={"path": str(make_tiny_model(tmp_path / "model"))}, actor={"ppo_epochs": 10})
    batches = [synthetic_batch(64 if step == LONG_STEP else 4, 4, seed=step) for step in range(STEPS)]
    for run in ("calm", "rough"):
        fill_run(engine, run, values, batches)
    stages = trainer_stages(stack, engine, backends(World(), torch.device("cpu")))
    calm = {}
    for buffer in range(STEPS):
        calm[buffer] = (await asyncio.to_thread(stages.update, RunId("calm"), buffer)).loss
        await asyncio.to_thread(stages.publish, RunId("calm"), buffer)
    rough = Steps(temporal_client)

    with trainer_process(stack, "amid a checkpoint") as process:
        # The activity has answered when the state was copied; the write is what dies.
        await rough.whole(0)
        (stack.home / "may-die").touch()
        await died(process)
    (stack.home / "may-die").unlink()
    assert saved(stack) == []
    with trainer_process(stack) as process:
        interrupted = await rough.start(signatures.update, LONG_STEP)
        await started(interrupted)
        process.send_signal(signal.SIGKILL)
        await died(process)
        assert len(checksums(engine, "rough")) == LONG_STEP
    with trainer_process(stack, "before the row of a checkpoint") as process:
        rough.losses[LONG_STEP] = (await interrupted.result()).loss
        await (await rough.start(signatures.publish, LONG_STEP)).result()
        await (await rough.start(signatures.checkpoint, LONG_STEP)).result()
        (stack.home / "may-die").touch()
        await died(process)
    assert saved(stack) == ["step_000002"]
    with trainer_process(stack, "between the bytes of a version and its row") as process:
        interrupted = await rough.start(signatures.publish, 2)
        await died(process)
    assert len(checksums(engine, "rough")) == 2
    assert (stack.weights_dir / "rough" / "v000003" / "manifest.json").exists()
    with trainer_process(stack, "after the row of a version") as process:
        await died(process)
    assert len(checksums(engine, "rough")) == 3
    with trainer_process(stack) as process:
        assert (await interrupted.result()).version == 3
        for buffer in (2, 3, 4):
            await rough.whole(buffer)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
    assert "step_000004" in saved(stack), "an orderly stop ends the write in progress"
    assert rough.losses == calm
    assert checksums(engine, "rough") == checksums(engine, "calm")
    log = (stack.home / "trainer.log").read_text()
    assert f"loaded {stack.checkpoints_dir / 'rough' / 'step_000002'}" in log
    assert "differs from the published one" not in log
    engine.dispose()


def saved(stack: Stack) -> list[str]:
    """Complete checkpoints of the run."""
    return sorted(marker.parent.name for marker in (stack.checkpoints_dir / "rough").glob("step_*/COMMITTED"))
