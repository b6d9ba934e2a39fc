"""vLLM's `AsyncLLM` behind the `Engine` interface. Import it through `load_engine`, which sets the environment first.

Facts about vLLM this file works around: a continued request id would be accepted twice; an update that leaves out a
tensor succeeds; log-probs are of the raw distribution unless the engine is told otherwise; detokenizing costs time and
is not needed (tokens in, tokens out); a call other than `generate` is never answered when the engine process dies.
"""

import asyncio
import itertools
import multiprocessing
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest
from vllm.inputs import tokens_input
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from ...activities.weights.names import Shapes, describe
from ...schemas.errors import EngineUnavailable, EngineUnfit, one_line
from ...schemas.ids import Version
from ...schemas.messages.rollout import EngineSpec, Sampling
from .engine import Chunk, EngineRequest, StreamEnd
from .model_tensors import require_same
from .staging import StagedWeights
from .start_fault import start_fault
from .unfit import CANNOT_HEAL, CANNOT_TAKE

BACKEND = "psrl"
"""The name `weight_extension` registers in vLLM's worker process; that module is not imported here."""
EXTENSION = "psrl.workers.rollout.weight_extension.WorkerExtension"
ENDS = {"stop": StreamEnd.STOP, "length": StreamEnd.LENGTH, "abort": StreamEnd.ABORTED}


REAP_S = 2.0
"""How long an ended engine process may take to be gone."""
DEATH_CHECK_S = 0.5
"""How often a call in progress looks whether the engine still lives."""


class VllmEngine:
    def __init__(self) -> None:
        # One thread for the engine's whole life: the kernel ends the engine process when the thread that started it
        # ends, and the start blocks for seconds, too long for the event loop.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="engine-start")
        self._shapes: Shapes = {}
        self._probes = itertools.count()
        self._llm: AsyncLLM | None = None
        self._starting = False
        self._model = ""
        self._told = ExitStack()
        """Holds the file in which the engine's process leaves the reason of its end."""
        self._reason = Path()

    async def start(self, spec: EngineSpec) -> None:
        architecture, self._shapes = await asyncio.to_thread(describe, spec.model)
        start = partial(_start, spec, architecture)
        self._starting, self._model = True, spec.model.path
        self._reason = self._told.enter_context(start_fault())
        try:
            self._llm = llm = await asyncio.get_running_loop().run_in_executor(self._starter, start)
        except CANNOT_HEAL as error:
            raise EngineUnfit(f"vLLM cannot run model.path={spec.model.path}: {one_line(error)}") from error
        except RuntimeError as error:
            raise self._failed("vLLM did not start") from error
        finally:
            self._starting = False
        await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
        prompt = tokens_input(list(request.prompt_ids), cache_salt=request.cache_salt)
        params = _sampling_params(request.sampling, request.chunk_tokens)
        stream = self._running.generate(prompt, params, request.request_id)
        try:
            async with aclosing(stream):
                async for output in stream:
                    yield _chunk(output)
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineUnavailable(f"the engine failed while generating: {error!r}") from error

    async def pause(self, interrupt: bool) -> None:
        await self._answered(self._running.pause_generation(mode="abort" if interrupt else "wait", clear_cache=True))

    async def resume(self) -> None:
        await self._answered(self._running.resume_generation())

    async def ping(self) -> None:
        await self._answered(self._running.is_paused())

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._running.abort(request_ids)

    async def load(self, tensors: Mapping[str, torch.Tensor], version: Version) -> None:
        require_same(self._shapes, tensors, version)
        wanted = {name: tensors[name] for name in self._shapes}
        with closing(await asyncio.to_thread(StagedWeights, wanted)) as staged:
            try:
                await self._update(staged.describe(), version)
            except Exception as error:
                if CANNOT_TAKE in str(error):
                    raise EngineUnfit(f"version {version}: {one_line(error)}") from error
                raise EngineUnavailable(f"loading version {version} failed midway: {error!r}") from error

    async def _update(self, staged: dict[str, Any], version: Version) -> None:
        llm = self._running
        await self._answered(llm.start_weight_update())
        try:
            await self._answered(llm.update_weights(WeightTransferUpdateRequest(update_info=staged)))
            await self._answered(llm.finish_weight_update(str(version)))
        except BaseException:
            if self.alive():
                await self._answered(llm.collective_rpc("abandon_weight_update"))
            raise

    async def _answered(self, call: Coroutine[Any, Any, Any]) -> None:
        """Wait for a call's answer, or raise `EngineUnavailable` when the engine dies first."""
        task = asyncio.create_task(call)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=DEATH_CHECK_S)
                if not task.done() and not self.alive():
                    raise EngineUnavailable("the engine died during a call")
        finally:
            task.cancel()
        try:
            task.result()
        except EngineDeadError as error:
            raise EngineUnavailable(f"the engine is dead: {error!r}") from error

    async def probe(self, token_ids: Sequence[int]) -> list[float]:
        params = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompt = tokens_input(list(token_ids))
        final: RequestOutput | None = None
        try:
            async for output in self._running.generate(prompt, params, f"probe-{next(self._probes)}"):
                final = output
        except (EngineDeadError, EngineGenerateError) as error:
            raise self._failed("the engine failed while being probed") from error
        assert final is not None
        _last_fault.clear()
        positions = cast(Sequence[dict[int, Any]], final.prompt_logprobs)
        return [positions[i][token].logprob for i, token in enumerate(token_ids) if i]

    @property
    def kv_capacity_tokens(self) -> int:
        cache = self._running.vllm_config.cache_config
        return int((cache.num_gpu_blocks or 0) * cache.block_size)

    def alive(self) -> bool:
        return self._llm is not None and not self._llm.errored

    def kill(self) -> None:
        # A host has one engine at a time, so every child is of this one.
        for child in multiprocessing.active_children():
            child.kill()

    def shutdown(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown(timeout=0)
            for child in multiprocessing.active_children():
                child.join(REAP_S)  # Nobody else waits for it: it would stay as a zombie of this long-lived host.
        elif self._starting:
            self.kill()  # The start then fails by itself.
        self._starter.shutdown(wait=False)
        self._told.close()

    def _failed(self, what: str) -> EngineUnfit | EngineUnavailable:
        """Memory that was taken is free by the next start, or the figures differ. The very same words twice in a row
        are no accident; a child that was killed has none."""
        reason = self._reason.read_text() if self._reason.is_file() else ""  # not there once it was given up
        again, _last_fault[:] = _last_fault == [reason], [reason]
        if again and reason:
            return EngineUnfit(f"vLLM cannot run model.path={self._model}: {reason}")
        return EngineUnavailable(f"{what}: {reason or 'its process ended without a word'}")

    @property
    def _running(self) -> AsyncLLM:
        if self._llm is None or self._llm.errored:
            raise EngineUnavailable("the engine is not running")
        return self._llm


_last_fault: list[str] = []
"""Why this host's last engine failed before it had computed anything, while no other has."""


def _start(spec: EngineSpec, architecture: str | None) -> AsyncLLM:
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=spec.model.path,
            config_format="hf",
            # No version is ever served from the folder: the first pull brings every tensor, checked by name and shape.
            load_format="dummy",
            dtype=spec.rollout.dtype.value,
            seed=spec.seed,
            trust_remote_code=spec.model.trust_remote_code,
            enforce_eager=spec.rollout.enforce_eager,
            kv_cache_memory_bytes=spec.kv_cache_bytes,
            block_size=spec.rollout.block_size,
            max_model_len=spec.context_tokens,
            max_num_seqs=spec.max_num_seqs,
            # The class that is trained. Folders name others, or none: a head for values that was cut off, a base model.
            hf_overrides={"architectures": [architecture]} if architecture else {},
            enable_prefix_caching=True,
            # On a CPU the engine dies of a seeded request whose prompt it takes in parts, and every turn has a seed
            # (vLLM 0.32: "CPU Generator does not use offset").
            enable_chunked_prefill=False if current_platform.is_cpu() else None,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=EXTENSION,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            disable_log_stats=True,
            enable_log_requests=False,
        )
    )


def _sampling_params(sampling: Sampling, chunk_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        stream_interval=chunk_tokens,
    )


def _chunk(output: RequestOutput) -> Chunk:
    completion = output.outputs[0]
    if completion.finish_reason not in ENDS and output.finished:
        raise EngineUnavailable(f"the engine ended request {output.request_id} with {completion.finish_reason!r}")
    values = completion.logprobs.logprobs if completion.logprobs else ()
    cached = output.num_cached_tokens or 0
    if not output.finished:
        return Chunk(completion.token_ids, values, cached_tokens=cached)
    versions = tuple(span.version for span in completion.weight_versions or ())
    return Chunk(completion.token_ids, values, ENDS[completion.finish_reason], versions, cached)
