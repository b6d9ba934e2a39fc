"""The gate between generate calls and the engine: who may enter, who is inside, and waiting until nobody is.

Promises: who passed `enter` and took a `slot` without awaiting in between is seen by `settle`; after `settle` returned
and while the gate is shut, nobody is inside.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from .engine import Engine

SETTLE_S = 2.0
"""How long requests that slipped past a closing gate may take to end by themselves before they are aborted."""


@dataclass(slots=True)
class Tokens:
    """Of a request inside."""

    prompt: int
    """Tokens of the context when its turn began."""
    sampled: int
    """Tokens of the turn so far."""
    shares: str = ""
    """Requests that name the same thing have the same context before their turn: its KV cache is there once."""


class Gate:
    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside: dict[str, Tokens] = {}
        self._storing = 0
        self.chunks = 0
        """Deliveries of the engine to requests inside, in the life of this gate."""

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def inside(self) -> int:
        return len(self._inside)

    @property
    def tokens_inside(self) -> int:
        """Prompts and sampled tokens of the requests inside."""
        return sum(request.prompt + request.sampled for request in self._inside.values())

    @property
    def requests(self) -> Mapping[str, Tokens]:
        """Those inside, in the order in which they came."""
        return self._inside

    @property
    def waiting(self) -> int:
        """Requests inside that expect something of the engine, and not of the store."""
        return len(self._inside) - self._storing

    def queued(self, slots: int) -> list[str]:
        """Requests inside for which an engine of so many slots has none yet: it takes them in the order they came."""
        return list(self._inside)[slots:]

    def beyond(self, slots: int, capacity: int) -> int:
        """How many of those with a slot do not fit a KV cache of so many tokens, the engine taking them in the order in
        which they came."""
        held, seen = 0, set[str]()
        with_slot = list(islice(self._inside.values(), slots))
        for place, tokens in enumerate(with_slot):
            held += tokens.sampled + (0 if tokens.shares in seen else tokens.prompt)
            seen.add(tokens.shares)
            if held > capacity:
                return len(with_slot) - place
        return 0

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    async def enter(self, patience_s: float) -> bool:
        """Whether the gate is open, within the given time."""
        if not self.is_open:
            try:
                await asyncio.wait_for(self._open.wait(), patience_s)
            except TimeoutError:
                return False
        # It may have been shut again since the event woke this task.
        return self.is_open

    @contextmanager
    def slot(self, request_id: str, prompt_tokens: int, sampled: int = 0, shares: str = "") -> Iterator[None]:
        """`sampled`: tokens of the turn that earlier calls produced."""
        self._inside[request_id] = Tokens(prompt_tokens, sampled, shares or request_id)
        self._empty.clear()
        try:
            yield
        finally:
            del self._inside[request_id]
            if not self._inside:
                self._empty.set()

    def progress(self, request_id: str, tokens: int) -> None:
        self._inside[request_id].sampled += tokens
        self.chunks += 1

    @contextmanager
    def storing(self) -> Iterator[None]:
        """A request inside waits for the store meanwhile."""
        self._storing += 1
        try:
            yield
        finally:
            self._storing -= 1

    async def settle(self, engine: Engine, patience_s: float = SETTLE_S) -> None:
        """Wait until nobody is inside; requests that reached the engine after it was paused are aborted."""
        try:
            await asyncio.wait_for(self._empty.wait(), patience_s)
        except TimeoutError:
            await engine.abort(list(self._inside))
            await self._empty.wait()
