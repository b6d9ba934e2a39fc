"""What a host counts: generate calls for the coordinator, tokens for the instance's workflow."""

from collections.abc import Iterator
from contextlib import contextmanager


class Counts:
    def __init__(self) -> None:
        self.callers = 0
        """Generate calls in progress, whether or not the engine has taken them up."""
        self.received = 0
        """Generate calls ever."""
        self.tokens = 0
        """Sampled since the engine was last started. What it gave before may still be stored after that."""
        self.tokens_total = 0
        """Stored ever."""

    @contextmanager
    def caller(self) -> Iterator[None]:
        """A generate call, from its arrival to its answer."""
        self.received += 1
        self.callers += 1
        try:
            yield
        finally:
            self.callers -= 1

    def sampled(self, tokens: int) -> None:
        """By a request that is in the engine."""
        self.tokens += tokens

    def stored(self, tokens: int) -> None:
        self.tokens_total += tokens

    def engine_started(self) -> None:
        """No request of before is in it any more."""
        self.tokens = 0
