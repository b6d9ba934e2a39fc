"""Tasks of a workflow that live as long as a block."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def ended_after(*tasks: "asyncio.Task[Any]") -> AsyncIterator[None]:
    """However the block ends, the tasks are cancelled and over afterwards; what they raised is left to who wants it.

    The coroutine of a workflow that left a worker's memory is closed by the garbage collector: it must not wait then,
    which is why no `finally` of a workflow awaits anything.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError):
        await end(*tasks)
        raise
    await end(*tasks)


def look_at_done(tasks: "set[asyncio.Task[None]]") -> None:
    """Take out those that are over. What one of them raised is a defect, and raised here."""
    for task in [task for task in tasks if task.done()]:
        tasks.discard(task)
        task.result()


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancelled, and over when this returns."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
