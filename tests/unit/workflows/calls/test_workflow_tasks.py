"""Tasks that live as long as a block of a workflow."""

import asyncio
import gc
import sys
from typing import Any

import pytest

from psrl.workflows.calls.tasks import ended_after


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


async def begun(ended: list[str]) -> "asyncio.Task[None]":
    task = asyncio.create_task(forever(ended))
    await asyncio.sleep(0)
    return task


async def test_the_tasks_are_over_when_the_block_is() -> None:
    ended: list[str] = []
    async with ended_after(await begun(ended), await begun(ended)):
        assert not ended
    assert ended == ["ended", "ended"]


async def test_an_error_and_a_cancellation_pass_after_the_tasks_are_over() -> None:
    for error in (ValueError, asyncio.CancelledError):
        ended: list[str] = []
        with pytest.raises(error):
            async with ended_after(await begun(ended)):
                raise error
        assert ended == ["ended"]


async def test_a_coroutine_that_is_thrown_away_in_the_block_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a workflow that is dropped with its worker: Python would say "coroutine ignored GeneratorExit"."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    task = await begun([])

    async def play() -> None:
        async with ended_after(task):
            await asyncio.Event().wait()

    playing = play()
    playing.send(None)
    del playing
    gc.collect()
    assert not unraisable
    task.cancel()
