"""An engine that follows a script: deterministic tokens, chosen delays and faults. It is a `rollout.engine.Engine`.

With a real trainer's versions, whose probes it cannot know, use a wide `rollout.weight_probe_tolerance`.

Plugged into a host process by `--engine tests.support.scripted_engine:ScriptedEngine` with the script as JSON in
`PSRL_SCRIPT`, or made by a test with `ScriptedEngine(Script(...))`. A token depends only on the token before it and its
position, so that a generation continued from any prefix gives the same tokens as an uninterrupted one.
"""

import asyncio
import itertools
import json
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psrl.schemas.errors import EngineUnavailable
from psrl.schemas.ids import Version
from psrl.schemas.messages.rollout import EngineSpec
from psrl.schemas.weights import WeightProbe
from psrl.workers.rollout.engine import Chunk, EngineRequest, StreamEnd

VARIABLE = "PSRL_SCRIPT"
FIRST_ID, IDS = 7, 90
STOP_ID = 2


@dataclass
class Script:
    stop_after: int | None = None
    """STOP at the first position where `position % stop_after == 0`; None samples until the budget is used up."""
    token_s: float = 0.0
    """Pause before each token."""
    start_s: float = 0.0
    load_s: float = 0.0
    manual: bool = False
    """Tokens come only when the test allows them."""
    failing_starts: int = 0
    failing_loads: list[int] = field(default_factory=list)
    """Versions whose (next) load fails midway."""
    wrong_probes: list[int] = field(default_factory=list)
    """Versions whose (next) probe does not match."""
    holds_at: list[int] = field(default_factory=list)
    """Having sampled so many tokens, an engine gives no other one before the file `{release}.{number}` exists."""
    release: str = ""
    kv_tokens: int = 100_000
    """Room in its KV cache."""
    cached_tokens: int = 0
    """Of every request's prompt, as an engine says whose cache was kept."""
    stalls_after: int | None = None
    """The first engine of a process stops after so many tokens, as if its process were frozen. Later ones do not."""
    sampled_log: str = ""
    """A file that gets one byte for every token sampled, so that it can be counted after a kill."""


def token_at(previous: int, position: int) -> int:
    return FIRST_ID + (previous * 31 + position * 17) % IDS


def logprob_at(previous: int, position: int) -> float:
    """Exact in float32."""
    return -((previous + position) % 7 + 1) / 8


def scripted_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What an uninterrupted generation gives after `prompt`."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(token_at(ids[-1], len(ids)))
    return ids[len(prompt) :]


def scripted_probe(version: int, token_ids: Sequence[int] = (7, 8, 9, 10)) -> WeightProbe:
    """What the engine answers after loading `version`."""
    values = tuple(-(1 + (i + version) % 5) / 4 for i in range(len(token_ids) - 1))
    return WeightProbe(token_ids=tuple(token_ids), logprobs=values)


_engines = itertools.count()


class ScriptedEngine:
    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script(**json.loads(os.environ.get(VARIABLE, "{}")))
        self.loaded: list[int] = []
        self.requests: list[EngineRequest] = []
        self.running: set[str] = set()
        self.paused = False
        self.dead = True
        self.stalled = False
        """Lives, but gives nothing and answers nothing."""
        self.sampled = 0
        self.held = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._first = next(_engines) == 0
        self.aborted: set[str] = set()
        self._allowed = 0
        self._changed = asyncio.Condition()

    # --- what a test does --------------------------------------------------------------------------------------------

    async def allow(self, tokens: int) -> None:
        """With `manual`: let so many tokens come, whoever gets them."""
        async with self._changed:
            self._allowed += tokens
            self._changed.notify_all()

    async def die(self) -> None:
        async with self._changed:
            self.dead = True
            self._changed.notify_all()

    async def stall(self) -> None:
        async with self._changed:
            self.stalled = True
            self._changed.notify_all()

    async def until_running(self, requests: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.running) == requests)

    # --- Engine ------------------------------------------------------------------------------------------------------

    async def start(self, spec: EngineSpec) -> None:
        await asyncio.sleep(self.script.start_s)
        if self.script.failing_starts:
            self.script.failing_starts -= 1
            raise RuntimeError("scripted: the engine does not start")
        self.dead = False

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        assert request.request_id not in {seen.request_id for seen in self.requests}, "a request id was used twice"
        self.requests.append(request)
        ids, left = list(request.prompt_ids), request.sampling.max_tokens
        version = str(self.loaded[-1]) if self.loaded else "default"
        await self._enter(request.request_id)
        try:
            while True:
                if self.script.token_s:
                    await asyncio.sleep(self.script.token_s)
                if not await self._may_sample(request.request_id):
                    yield Chunk([], [], StreamEnd.ABORTED, (version,), self.script.cached_tokens)
                    return
                previous, position = ids[-1], len(ids)
                left -= 1
                stop = self.script.stop_after is not None and position % self.script.stop_after == 0
                ids.append(STOP_ID if stop else token_at(previous, position))
                self._count()
                end = StreamEnd.STOP if stop else None if left else StreamEnd.LENGTH
                versions, cached = (version,) if end else (), self.script.cached_tokens
                yield Chunk([ids[-1]], [logprob_at(previous, position)], end, versions, cached)
                if end:
                    return
        finally:
            await self._leave(request.request_id)

    async def pause(self, interrupt: bool) -> None:
        await self.ping()
        async with self._changed:
            if interrupt:
                self.aborted |= self.running
                self._changed.notify_all()
            else:
                await self._changed.wait_for(lambda: not self.running)
            if self.dead:
                raise EngineUnavailable("scripted: the engine died")
            self.paused = True

    async def resume(self) -> None:
        async with self._changed:
            self.paused = False
            self._changed.notify_all()

    async def abort(self, request_ids: Sequence[str]) -> None:
        async with self._changed:
            self.aborted |= set(request_ids)
            self._changed.notify_all()

    async def load(self, tensors: Mapping[str, Any], version: Version) -> None:
        assert self.paused, "weights may change only while the engine is paused"
        assert not self.running, "weights may change only while no request is left"
        await asyncio.sleep(self.script.load_s)
        if version in self.script.failing_loads:
            self.script.failing_loads.remove(version)
            raise EngineUnavailable(f"scripted: loading version {version} failed midway")
        self.loaded.append(version)

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        assert not self.paused, "a paused engine answers nothing"
        version = self.loaded[-1]
        shift = 0.5 if version in self.script.wrong_probes else 0.0
        if shift:
            self.script.wrong_probes.remove(version)
        return [value + shift for value in scripted_probe(version, token_ids).logprobs]

    async def ping(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.dead or not self.stalled)
            if self.dead:
                raise EngineUnavailable("scripted: the engine died")

    @property
    def kv_capacity_tokens(self) -> int:
        return self.script.kv_tokens

    def alive(self) -> bool:
        return not self.dead

    def kill(self) -> None:
        self.dead = True
        self._tasks.add(asyncio.get_running_loop().create_task(self.die()))

    def shutdown(self) -> None:
        self.dead = True

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self.sampled += 1
        self.stalled = self.stalled or (self._first and self.sampled == self.script.stalls_after)
        if self.sampled in self.script.holds_at:
            self.held = True
            self._tasks.add(asyncio.get_running_loop().create_task(self._hold(self.sampled)))
        if self.script.sampled_log:
            with Path(self.script.sampled_log).open("ab", buffering=0) as log:
                log.write(b".")

    async def _hold(self, number: int) -> None:
        while not self._released(number):  # noqa: ASYNC110 (a file wakes nobody)
            await asyncio.sleep(0.01)
        async with self._changed:
            self.held = False
            self._changed.notify_all()

    def _released(self, number: int) -> bool:
        return Path(f"{self.script.release}.{number}").exists()

    async def _enter(self, request_id: str) -> None:
        async with self._changed:
            self.running.add(request_id)
            self._changed.notify_all()

    async def _leave(self, request_id: str) -> None:
        self.running.discard(request_id)
        async with self._changed:
            self._changed.notify_all()

    async def _may_sample(self, request_id: str) -> bool:
        """Wait for the permission to sample one token; False when the request was aborted."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: (
                    self.dead
                    or request_id in self.aborted
                    or not (self.stalled or self.paused or self.held or (self.script.manual and self._allowed <= 0))
                )
            )
            if self.dead:
                raise EngineUnavailable("scripted: the engine died")
            if request_id in self.aborted:
                return False
            self._allowed -= 1
            return True
