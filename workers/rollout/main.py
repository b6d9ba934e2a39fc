"""`python -m psrl.workers.rollout.main --instance rollout-0`: the process of one rollout engine.

The engine's module is imported before the process polls, so that starting an engine costs seconds less. On a stop
signal running generations are interrupted with their tokens stored, then the engine's processes are ended.
"""

import argparse
import asyncio
import contextlib
import functools
from datetime import timedelta

from temporalio.worker import Worker

from ...activities.generation.turns import TurnStore
from ...activities.generation.writer import SegmentWriter
from ...activities.store.connections import async_store
from ...activities.store.migrate import require_current
from ...activities.store.reach import require_reachable
from ...activities.weights.transports import every_transport
from ...schemas.ids import InstanceId, rollout_queue
from ...schemas.stack import Stack
from ..coordinator.client import CoordinatorClient
from ..process import join, run_worker
from .activities import BEAT_INTERVAL_S, RolloutActivities
from .calls import Calls
from .engine import DEFAULT_ENGINE, EngineFactory, load_engine
from .generate import Generator
from .host import Host
from .reporter import keep_attached
from .source import PublishedWeights

MAX_ACTIVITIES = 1024
"""More than any engine runs at once: what waits here starts without a hop when a slot is free."""
INTERRUPT_PATIENCE_S = 3.0
"""For an operation in progress when the stop signal comes; afterwards the engine is stopped as it is."""
GRACE = timedelta(seconds=4)
FAREWELL_S = 1.0
"""For the last report."""
HEARTBEAT_THROTTLE = timedelta(seconds=BEAT_INTERVAL_S)
"""How late a generate call learns of its cancellation, at most. The SDK's own 8 seconds would let an engine work for
nothing."""


async def main(stack: Stack, stop: asyncio.Event, instance: InstanceId, make_engine: EngineFactory) -> None:
    await asyncio.to_thread(require_reachable, stack.postgres_url, store_id=stack.store_id)
    await asyncio.to_thread(require_current, stack.postgres_url)
    store = async_store(stack.postgres_url, store_id=stack.store_id)
    host = Host(instance, make_engine, PublishedWeights(store, every_transport(stack.weights_dir)))
    # Every call on it is repeated while PostgreSQL is away.
    tokens = async_store(stack.postgres_url, pre_ping=False, store_id=stack.store_id)
    writer = SegmentWriter(tokens)
    calls = Calls(instance, Generator(host, TurnStore(tokens), writer))
    activities = RolloutActivities(host, calls, stop)
    coordinator = CoordinatorClient(stack.coordinator_address, stack.stack_id)
    ending = asyncio.Event()
    attached = asyncio.create_task(keep_attached(host, coordinator, ending))
    client = await join(stack)
    worker = Worker(
        client,
        task_queue=rollout_queue(instance),
        activities=activities.all,
        max_concurrent_activities=MAX_ACTIVITIES,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=GRACE,
        identity=instance,
    )
    try:
        async with worker:
            await stop.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(host.interrupt(), INTERRUPT_PATIENCE_S)
    finally:
        await calls.close()
        await writer.close()
        await host.shutdown()
        ending.set()
        host.changed.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(attached, FAREWELL_S)
        await coordinator.close()
        await tokens.dispose()
        await store.dispose()


def run() -> None:
    parser = argparse.ArgumentParser(prog="psrl.workers.rollout.main", description=__doc__)
    parser.add_argument("--instance", required=True, help="rollout-0, rollout-1, ...")
    parser.add_argument("--engine", default=DEFAULT_ENGINE, help="package.module:Class (default: %(default)s)")
    options = parser.parse_args()
    make_engine = load_engine(options.engine)
    run_worker(functools.partial(main, instance=InstanceId(options.instance), make_engine=make_engine))


if __name__ == "__main__":
    run()
