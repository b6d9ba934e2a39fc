"""What the gateway knows of a run's model: how its conversations are rendered and read, and how it samples."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ...activities.capture.model import ChatModel
from ...schemas.config import RunConfig
from ...schemas.ids import RunId

Result = TypeVar("Result")

KEPT = 4
"""Runs whose models are kept in memory."""


class Model:
    """One run's. Text is worked on in one thread: the event loop stays free, and a tokenizer is not shared."""

    def __init__(self, run_id: RunId, config: RunConfig) -> None:
        self.run_id, self.config = run_id, config
        self.names = (str(run_id), Path(config.model.path).name)
        """By which requests may ask for it."""
        chat = ChatModel.open(config)
        self.tokenizer, self.stop_ids = chat.tokenizer, chat.stop_ids
        self.template, self.reader = chat.template, chat.reader


class Models:
    def __init__(self, config: "Callable[[RunId], Any]") -> None:
        self._config = config
        self._loading: OrderedDict[RunId, asyncio.Task[Model]] = OrderedDict()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="text")

    async def of(self, run_id: RunId) -> Model:
        """Loaded once. Raises `ModelError` when it cannot be used for conversations."""
        if run_id not in self._loading:
            self._loading[run_id] = asyncio.create_task(self._load(run_id))
            while len(self._loading) > KEPT:
                self._loading.popitem(last=False)
        self._loading.move_to_end(run_id)
        try:
            return await asyncio.shield(self._loading[run_id])
        except Exception:
            self._loading.pop(run_id, None)
            raise

    @property
    def loaded(self) -> list[Model]:
        """Of the runs that this gateway serves."""
        over = [task for task in self._loading.values() if task.done() and not task.cancelled()]
        return [task.result() for task in over if task.exception() is None]

    async def worked_out(self, call: Callable[[], Result]) -> Result:
        """Text work, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, run_id: RunId) -> Model:
        config = await self._config(run_id)
        return await self.worked_out(lambda: Model(run_id, config))
