"""`python -m psrl.workers.trainer.main`: the trainer process of a stack."""

import asyncio
import os
from datetime import timedelta

import torch
from temporalio.worker import Worker
from transformers.utils.logging import disable_progress_bar

from ...activities.store.connections import sync_store
from ...activities.store.migrate import require_current
from ...activities.store.reach import require_reachable
from ...schemas.ids import TRAINER_QUEUE
from ...schemas.stack import Stack
from ..process import join, run_worker
from .backends import backends
from .host import TrainerHost
from .opening import trainer_stages
from .world import World

GRACE = timedelta(seconds=20)
"""A stage in progress may finish so long after a stop signal; a lost one is repeated by the next process."""
WAITING_ACTIVITIES = 8
"""Stages run one at a time; a repeated attempt must not wait behind the first for its heartbeat."""


def prepare_torch() -> torch.device:
    """Threads, determinism, device; process-wide, before the first tensor."""
    if torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        device = torch.device("cuda")
    else:
        # More than one spinning OpenMP thread beside another busy process is many times slower.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        device = torch.device("cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)
    disable_progress_bar()  # Logs are files.
    return device


async def main(stack: Stack, stop: asyncio.Event) -> None:
    world, device = World.from_environment(), prepare_torch()
    await asyncio.to_thread(require_reachable, stack.postgres_url, store_id=stack.store_id)
    await asyncio.to_thread(require_current, stack.postgres_url)
    store = sync_store(stack.postgres_url, store_id=stack.store_id)
    host = TrainerHost(trainer_stages(stack, store, backends(world, device)))
    client = await join(stack)
    worker = Worker(
        client,
        task_queue=TRAINER_QUEUE,
        activities=host.activities,
        max_concurrent_activities=WAITING_ACTIVITIES,
        graceful_shutdown_timeout=GRACE,
        identity="trainer",
    )
    try:
        async with worker:
            await stop.wait()
    finally:
        await asyncio.to_thread(host.shutdown)
        store.dispose()


if __name__ == "__main__":
    run_worker(main)
