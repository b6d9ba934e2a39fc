"""What a host counts: generate calls for the coordinator, tokens for the instance's workflow."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

WINDOW_S = 1.0
"""An engine hands tokens over in pieces: over a shorter time their rate would jump."""


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
        self._sampled_ever = 0
        self._sampled_at: deque[tuple[float, int]] = deque()
        """When the rate was asked for, and how many had been sampled by then."""
        self._first_token_s: list[float] = []

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
        self._sampled_ever += tokens

    def first_token(self, seconds: float) -> None:
        """After a request entered the engine."""
        self._first_token_s.append(seconds)

    def take_first_token_s(self) -> float | None:
        """Mean of those since the question before."""
        taken, self._first_token_s = self._first_token_s, []
        return sum(taken) / len(taken) if taken else None

    def rate(self, now: float) -> float:
        """Tokens sampled per second, over the last `WINDOW_S` or since the question before, whichever is longer."""
        self._sampled_at.append((now, self._sampled_ever))
        while len(self._sampled_at) > 2 and now - self._sampled_at[1][0] >= WINDOW_S:
            self._sampled_at.popleft()
        since, before = self._sampled_at[0]
        return (self._sampled_ever - before) / (now - since) if now > since else 0.0

    def stored(self, tokens: int) -> None:
        self.tokens_total += tokens

    def engine_started(self) -> None:
        """No request of before is in it any more."""
        self.tokens = 0
