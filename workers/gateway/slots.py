"""How many turns one gateway plays at once. What comes on top is refused at once, not queued: a client knows best when
to come again."""

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ApiError

MAX_TURNS = 1024


class Slots:
    def __init__(self, limit: int = MAX_TURNS) -> None:
        self._limit, self.taken = limit, 0

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
