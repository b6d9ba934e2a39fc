"""`python -m psrl.workers.coordinator.main`: the coordinator process of a stack."""

import asyncio
import logging
import os
import time

from ...schemas.environment import COORDINATOR_METRICS
from ...schemas.stack import Stack
from ..process import run_worker
from .fleet import Fleet
from .metrics import FleetMetrics, serve_metrics
from .now import look
from .recorder import Recorder
from .server import GRACE_S, start_server
from .waiting import RouteQueue

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""The shortest interval of a recorder."""


async def serve(stack: Stack, stop: asyncio.Event) -> None:
    fleet = Fleet()
    queue, metrics = RouteQueue(fleet), FleetMetrics()
    address = os.environ.get(COORDINATOR_METRICS, "")
    stop_metrics = serve_metrics(address, metrics) if address else None
    server, _ = await start_server(stack.coordinator_address, stack.stack_id, fleet, queue)
    watching = asyncio.create_task(watch(fleet, queue, metrics, Recorder(stack.home / "status")))
    watching.add_done_callback(_tell)
    try:
        await stop.wait()
    finally:
        watching.cancel()
        await server.stop(GRACE_S)
        if stop_metrics is not None:
            await asyncio.to_thread(stop_metrics)


async def watch(fleet: Fleet, queue: RouteQueue, metrics: FleetMetrics, recorder: Recorder) -> None:
    """Until it is cancelled."""
    while True:
        metrics.now = look(fleet, queue, time.monotonic(), time.time())
        if recorder.wanted(metrics.now):
            await asyncio.to_thread(recorder.record, metrics.now)
        await asyncio.sleep(LOOK_S)


def _tell(watching: asyncio.Task[None]) -> None:
    """A defect there costs the records, and no placement."""
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.error("the fleet is watched no longer: there are no records and no metrics", exc_info=error)


if __name__ == "__main__":
    run_worker(serve)
