"""What works beside a run's main loop for as long as a block lasts: the dispatcher, the sweep. Owned by `TrainingRun`.

Promise: no such task fails unseen. The block watches `failed`, and raises what went wrong with `raise_failure`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ..calls.tasks import ended_after


class Worker(Protocol):
    async def run(self) -> None:
        """Until `end`."""
        ...

    def end(self) -> None:
        """Begin nothing more."""
        ...


class Beside:
    def __init__(self) -> None:
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    @property
    def failed(self) -> bool:
        """During the block a task ends in no other way."""
        return any(task.done() for task in self._tasks)

    def raise_failure(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    @asynccontextmanager
    async def working(self, *workers: Worker) -> AsyncIterator[None]:
        self._tasks = tuple(asyncio.create_task(worker.run()) for worker in workers)
        async with ended_after(*self._tasks):
            try:
                yield
            finally:
                for worker in workers:
                    worker.end()
        self._tasks = ()
