"""Heartbeats beside work that does not report progress of its own, so that a dead host is noticed and a cancellation
reaches the activity."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

INTERVAL_S = 3.0
"""Well below any heartbeat timeout in use; the SDK sends fewer when the timeout is long."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Heartbeats while the body runs; also usable outside an activity, where it does nothing."""
    if not activity.in_activity():
        yield
        return
    beat = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beat.cancel()


async def _beat() -> None:
    """The first one after a while: most calls are over by then and cost none."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        activity.heartbeat()
