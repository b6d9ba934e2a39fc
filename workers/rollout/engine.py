"""What the host asks of an engine. `VllmEngine` is the real one; tests plug in a scripted one by import path.

The host promises: `start` once before anything else; `load` and `probe` only while paused by it and with no request
left; one request id is never used twice in the life of an engine.
"""

import importlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...schemas.errors import UserError
from ...schemas.ids import Version
from ...schemas.messages.rollout import EngineSpec, Sampling

if TYPE_CHECKING:
    import torch

DEFAULT_ENGINE = "psrl.workers.rollout.vllm_engine:VllmEngine"

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one engine process, not an engine and a worker process
}
CPU_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # two OpenMP threads next to any other busy process run 10 to 25 times slower
    "TORCHDYNAMO_DISABLE": "1",  # it would run a C++ compiler per shape
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default puts every engine of a machine on core 0
}


class StreamEnd(StrEnum):
    """Why a stream of chunks ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    """By `pause(interrupt=True)` or `abort`: everything sampled before was delivered."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    request_id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    """`max_tokens` is what is left of the turn."""
    cache_salt: str
    """Requests with different salts never share cached prefixes."""
    chunk_tokens: int
    """Tokens the engine may hold back to save work; the last chunk always comes at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Newly sampled tokens; the last chunk of a request, which may be empty, has `end`."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    end: StreamEnd | None = None
    versions: tuple[str, ...] = ()
    """On the last chunk: versions the engine itself says the tokens come from; empty when it does not say."""
    cached_tokens: int = 0
    """Of the request's prompt: their KV was still in the engine. For a continued turn they are more than the turn's own
    prompt when its KV was kept, and not when a sync or a move to another instance dropped it."""


class Engine(Protocol):
    async def start(self, spec: EngineSpec) -> None:
        """Load the model of the directory; ready to be paused, loaded and probed. Not called twice."""
        ...

    def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        """Closing the iterator aborts the request. Raises `EngineUnavailable` when the engine dies."""
        ...

    async def pause(self, interrupt: bool) -> None:
        """Abort running requests, or let them finish; schedule nothing until `resume`. Forgets cached prefixes."""
        ...

    async def resume(self) -> None: ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Their streams end as ABORTED, also while paused."""
        ...

    async def load(self, tensors: "Mapping[str, torch.Tensor]", version: Version) -> None:
        """Raises `WeightsRefused` before touching the engine when names or shapes are wrong, `EngineUnavailable` when
        the update failed midway: then its weights are unusable until a later complete load."""
        ...

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of `token_ids[1:]` at temperature 1. Only after `resume`."""
        ...

    async def ping(self) -> None:
        """Returns when the engine answered, which it does between two of its steps, also while paused. Raises
        `EngineUnavailable` when it is dead."""
        ...

    @property
    def kv_capacity_tokens(self) -> int: ...

    def alive(self) -> bool: ...

    def kill(self) -> None:
        """End its processes as a crash would, at once and also when they hang: streams raise `EngineUnavailable`, and
        so does every call in progress. `shutdown` follows."""
        ...

    def shutdown(self) -> None:
        """Stop its processes at once, also in the middle of a start. From any thread, any number of times."""
        ...


class EngineFactory(Protocol):
    def __call__(self) -> Engine: ...


def load_engine(path: str) -> EngineFactory:
    """The class at `package.module:Name`. Sets the environment first: engines read it when they are imported."""
    prepare_environment()
    module, _, name = path.partition(":")
    try:
        factory: EngineFactory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--engine {path!r} does not import ({error}); wanted is package.module:Class") from error
    return factory


def prepare_environment() -> None:
    """What a user has set wins."""
    on_cpu = not Path("/dev/nvidiactl").exists()
    for key, value in {**ENVIRONMENT, **(CPU_ENVIRONMENT if on_cpu else {})}.items():
        os.environ.setdefault(key, value)
