"""What takes a while to load, kept for the latest few who ask. Used where many callers want the same at once.

Promises: it is loaded once, however many ask meanwhile; a caller that is cancelled takes it from nobody; what failed is
loaded anew when it is asked for again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LoadedOnce(Generic[Key, Value]):
    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._loading: OrderedDict[Key, asyncio.Task[Value]] = OrderedDict()

    async def get(self, key: Key, load: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Raises what `load` does."""
        if key not in self._loading:
            self._loading[key] = asyncio.create_task(load())
            while len(self._loading) > self._kept:
                self._loading.popitem(last=False)
        self._loading.move_to_end(key)
        try:
            return await asyncio.shield(self._loading[key])
        except Exception:
            self._loading.pop(key, None)
            raise

    @property
    def loaded(self) -> list[Value]:
        """Without what is still loading, or failed."""
        over = [task for task in self._loading.values() if task.done() and not task.cancelled()]
        return [task.result() for task in over if task.exception() is None]
