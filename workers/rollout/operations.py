"""What a host does with its engine, one operation at a time and each to its end, also when who asked for it is gone."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Operations:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    async def run(self, operation: Coroutine[Any, Any, Result]) -> Result:
        """Wait for its turn and its end."""

        async def locked() -> Result:
            async with self._lock:
                return await operation

        task = asyncio.create_task(locked())
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # Retrieved here, in case the activity that asked is gone.
            log.warning("%s: %r", self._name, task.exception())
