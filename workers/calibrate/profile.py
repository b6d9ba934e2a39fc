"""Measures an engine's steps: so many requests of so long a context at once, and the time between the tokens they get.

Promises: a step is measured only while all of its load decodes, so that no prefill is in it; requests share no prefix,
since one that is cached would cost less than it counts; of each load the median counts.
"""

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...schemas.messages.rollout import Sampling
from ..rollout.engine import Engine, EngineRequest
from .measured import StepTime

CHUNKS = 6
"""Deliveries of each request; the first ends its prefill."""
CHUNK_TOKENS = 8
"""The engine hands tokens over in such pieces, which is what it does for a run: each delivery costs, too."""
FEWEST_STEPS = 4
"""A median of fewer says little."""
FIRST_ID, IDS = 5, 20
"""Tokens of prompts: which ones they are does not matter to time, and every vocabulary has these."""


@dataclass(slots=True)
class Stream:
    """One request: how many tokens it had when."""

    prompt: int
    at: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


class Profiler:
    def __init__(self, engine: Engine, context_tokens: int) -> None:
        self._engine = engine
        self._chunk = max(1, min(CHUNK_TOKENS, context_tokens // (2 * CHUNKS)))
        self._longest = context_tokens - self._chunk * CHUNKS
        self._numbers = itertools.count()

    def loads(self, most_requests: int) -> list[tuple[int, int]]:
        """Requests and prompt tokens of each load: 1, 2, 4 … requests, of three lengths. What the KV cache cannot hold
        at once is no load."""
        lengths = sorted({max(1, self._longest * share // 8) for share in (1, 4, 8)})
        counts = [count for count in (2**power for power in range(11)) if count <= most_requests]
        room = self._engine.kv_capacity_tokens
        response = self._chunk * CHUNKS
        return [(n, length) for length in lengths for n in counts if n * (length + response) <= room]

    async def measure(self, requests: int, prompt: int) -> Sequence[StepTime]:
        """By the number of requests that still decoded: one may end early by itself."""
        streams = [Stream(prompt) for _ in range(requests)]
        await asyncio.gather(*(self._play(stream) for stream in streams))
        return list(steps_of(streams))

    async def _play(self, stream: Stream) -> None:
        number = next(self._numbers)
        chance = random.Random(number)
        request = EngineRequest(
            request_id=f"calibrate-{number}",
            prompt_ids=[FIRST_ID + chance.randrange(IDS) for _ in range(stream.prompt)],
            sampling=Sampling(temperature=1.0, max_tokens=self._chunk * CHUNKS),
            cache_salt=f"calibrate:{number}",
            chunk_tokens=self._chunk,
        )
        async for chunk in self._engine.generate(request):
            stream.at.append(time.perf_counter())
            stream.tokens.append(len(chunk.token_ids))


def steps_of(streams: Iterable[Stream]) -> Iterable[StepTime]:
    """Of each number of requests that decoded at once, the median step. One that ends between two deliveries of another
    counts for its share of the time between."""
    begun = [stream for stream in streams if len(stream.at) > 1]
    all_decode = max((stream.at[0] for stream in begun), default=0.0)
    found: dict[int, list[tuple[float, float]]] = {}
    for stream in begun:
        sampled = stream.tokens[0]
        for before, after, tokens in zip(stream.at, stream.at[1:], stream.tokens[1:], strict=False):
            sampled += tokens
            if before >= all_decode and tokens:
                count = round(sum(max(0.0, min(other.at[-1], after) - before) for other in begun) / (after - before))
                held = count * (stream.prompt + sampled - tokens / 2)
                found.setdefault(count, []).append(((after - before) / tokens, held))
    for count, steps in sorted(found.items()):
        if len(steps) >= min(FEWEST_STEPS, count):
            held_tokens = statistics.median(held for _, held in steps)
            yield StepTime(count, held_tokens, statistics.median(seconds for seconds, _ in steps))
