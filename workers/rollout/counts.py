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
        """Stored since the engine was last started."""
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

    def stored(self, tokens: int) -> None:
        self.tokens_total += tokens
        self.tokens += tokens

    def engine_started(self) -> None:
        self.tokens = 0
