"""What the gateway knows of a run's model: how its conversations are rendered and read, and how it samples."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from ...activities.capture.model import ChatModel
from ...activities.loaded import LoadedOnce
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
        self._models = LoadedOnce[RunId, Model](KEPT)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="text")

    async def of(self, run_id: RunId) -> Model:
        """Loaded once. Raises `ModelError` when it cannot be used for conversations."""
        return await self._models.get(run_id, lambda: self._load(run_id))

    @property
    def loaded(self) -> list[Model]:
        """Of the runs that this gateway serves."""
        return self._models.loaded

    async def worked_out(self, call: Callable[[], Result]) -> Result:
        """Text work, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self, run_id: RunId) -> Model:
        config = await self._config(run_id)
        return await self.worked_out(lambda: Model(run_id, config))
