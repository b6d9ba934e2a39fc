"""How many turns one gateway plays at once. What comes on top is refused at once, not queued: a client knows best when
to come again."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ApiError

MAX_TURNS = 1024
AT_WORK = 8
"""Turns whose text is worked on and whose rows are read or written; the others wait for this or for their engines. Who
asks for the gateway's health waits for no more of them than these."""


class Slots:
    def __init__(self, limit: int = MAX_TURNS) -> None:
        self._limit, self.taken = limit, 0
        self.at_work = asyncio.Semaphore(AT_WORK)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises `ApiError` when all are taken."""
        if self.taken >= self._limit:
            raise ApiError(429, "queue_full", f"{self.taken} turns are being played here; allowed: {self._limit}")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
