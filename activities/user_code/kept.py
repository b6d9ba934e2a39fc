"""What a process keeps at hand for the runs it works for, the latest few of them."""

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

KEPT_RUNS = 8


class KeptPerRun(Generic[Value]):
    """By workflow run id: a run that was resumed, perhaps with repaired code, has another one."""

    def __init__(self, dispose: Callable[[Value], None] = lambda _: None) -> None:
        self._kept: dict[str, Value] = {}
        self._dispose = dispose

    def __contains__(self, run: str) -> bool:
        return run in self._kept

    def __getitem__(self, run: str) -> Value:
        return self._kept[run]

    def get(self, run: str, make: Callable[[], Value]) -> Value:
        if run not in self._kept:
            self._kept[run] = make()
            while len(self._kept) > KEPT_RUNS:
                self._dispose(self._kept.pop(next(iter(self._kept))))
        return self._kept[run]

    def clear(self) -> None:
        while self._kept:
            self._dispose(self._kept.popitem()[1])
