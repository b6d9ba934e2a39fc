"""What several callers wait for is loaded once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from psrl.activities.loaded import LoadedOnce


def loading(loads: list[str], may_end: asyncio.Event) -> Callable[[], Coroutine[Any, Any, str]]:
    async def load() -> str:
        loads.append("load")
        await may_end.wait()
        return "loaded"

    return load


async def test_a_caller_that_is_cancelled_takes_it_from_nobody() -> None:
    kept, loads, may_end = LoadedOnce[str, str](2), list[str](), asyncio.Event()
    load = loading(loads, may_end)
    waiting = [asyncio.create_task(kept.get("a", load)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert kept.loaded == []
    may_end.set()
    assert await waiting[1] == "loaded"
    assert (loads, kept.loaded) == (["load"], ["loaded"])


async def test_what_failed_is_loaded_anew() -> None:
    kept, loads, may_end = LoadedOnce[str, str](2), list[str](), asyncio.Event()
    may_end.set()

    async def fails() -> str:
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        await kept.get("a", fails)
    assert await kept.get("a", loading(loads, may_end)) == "loaded"


async def test_who_was_asked_for_longest_ago_goes_first() -> None:
    kept, loads, may_end = LoadedOnce[str, str](2), list[str](), asyncio.Event()
    may_end.set()
    for key in ("a", "b", "a", "c", "a", "b"):
        await kept.get(key, loading(loads, may_end))
    assert len(loads) == 4, "a, b and c, and b again"
