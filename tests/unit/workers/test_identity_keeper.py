"""Whoever keeps watch over the server's identity goes on whatever happens."""

import asyncio
import logging

import pytest

from psrl.workers.identity import Hold


class Odd(Hold):
    """The first look at the server fails in a way that nobody foresaw."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", "default", "id")
        self.looks, self.taken_again = 0, asyncio.Event()

    @property
    def holds(self) -> bool:
        return self.taken_again.is_set()

    async def take(self) -> None:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("nobody foresaw it")
        self.taken_again.set()


async def test_a_keeper_survives_what_nobody_foresaw_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    hold = Odd()
    with caplog.at_level(logging.ERROR):
        hold.keep(lambda error: None)
        await asyncio.wait_for(hold.taken_again.wait(), 60)
    assert hold._keeper is not None
    hold._keeper.cancel()
    assert "could not be asked who it is" in caplog.text
