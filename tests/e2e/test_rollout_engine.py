"""The rollout host on a real vLLM engine: log-probs, weight updates, prefix cache, interruption, cancellation.

One engine for the module. The oracle is the same model in plain transformers, in float32.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from sqlalchemy.ext.asyncio import AsyncEngine
from transformers import Qwen2ForCausalLM

from psrl.activities.generation.turns import TurnStore
from psrl.activities.generation.writer import SegmentWriter
from psrl.activities.store.connections import async_store
from psrl.activities.weights.transport import Lease
from psrl.schemas.config import ModelSection, RolloutDtype, RolloutSection
from psrl.schemas.errors import EngineUnavailable, EngineUnfit, InvariantViolated, WeightsRefused
from psrl.schemas.ids import GroupId, RunId, Version
from psrl.schemas.messages.rollout import EngineSpec, InstanceState, Sampling, SegmentEnd, TurnRequest, TurnResult
from psrl.schemas.weights import WeightManifest, WeightProbe
from psrl.workers.rollout.engine import DEFAULT_ENGINE, EngineRequest, load_engine
from psrl.workers.rollout.generate import Generator, InEngine
from psrl.workers.rollout.host import Host
from tests.support.postgres import PostgresServer
from tests.support.rollout import INSTANCE, RUN, Stored, add_group, call, stored_segments, until
from tests.support.tiny_model import make_tiny_model, tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CONTEXT = 2048
PROMPT = [7 + i % 90 for i in range(40)]
TOLERANCE = 1e-4
PROBE_IDS = tuple(7 + (i * 37) % 90 for i in range(16))


@dataclass
class Rig:
    host: Host
    generator: Generator
    store: AsyncEngine
    versions: dict[int, Qwen2ForCausalLM]
    cached_tokens: list[int] = field(default_factory=list)
    """Of each finished request: prompt tokens the engine took from its prefix cache."""
    spans: list[list[str]] = field(default_factory=list)
    """Of each finished request: versions the engine itself says the tokens come from."""
    groups: int = 0
    endless: bool = False
    """No stop token ends a request: for tests that act in the middle of one."""

    @property
    def engine(self) -> Any:
        return self.host.engine_of(RUN)

    async def serve(self, version: int) -> None:
        await self.host.pause(RUN, interrupt=True)
        await self.host.pull(RUN, Version(version))
        await self.host.resume(RUN)
        self.cached_tokens.clear()  # of the probe
        self.spans.clear()

    async def new_group(self, prompt: Sequence[int] = PROMPT) -> GroupId:
        self.groups += 1
        group = GroupId(f"{self.groups:06d}")
        await add_group(self.store, 1, prompt, group)
        return group

    async def generate(self, group: GroupId, number: int = 0, max_tokens: int = 40, **sampling: Any) -> TurnResult:
        return await self.generator.generate(request(group, number, max_tokens, **sampling), 1, InEngine())


def request(group: GroupId, number: int, max_tokens: int, **sampling: Any) -> TurnRequest:
    made = call(0, number, max_tokens, **sampling)
    return made.model_copy(update={"trajectory": made.trajectory.model_copy(update={"group_id": group})})


def tensors_of(model: Qwen2ForCausalLM) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


def logprobs_of(model: Qwen2ForCausalLM, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Of `ids[1:]`, by plain transformers."""
    with torch.no_grad():
        table = (model(torch.tensor([list(ids)])).logits[0] / temperature).log_softmax(-1)
    return [table[i, token].item() for i, token in enumerate(ids[1:])]


class HfWeights:
    """Versions straight from models of plain transformers."""

    def __init__(self, versions: dict[int, Qwen2ForCausalLM]) -> None:
        self.versions = versions
        self.changes: dict[int, Any] = {}
        """Done to the tensors of a version on their way."""

    async def lease(self, run_id: RunId, version: Version) -> Lease:
        model = self.versions[version]
        probe = WeightProbe(token_ids=PROBE_IDS, logprobs=tuple(logprobs_of(model, PROBE_IDS)))
        tensors = tensors_of(model)
        if version in self.changes:
            tensors = self.changes.pop(version)(tensors)
        manifest = WeightManifest(run_id=run_id, version=version, transport="t", uri="", shards=(), probe=probe)
        return Lease(manifest, tensors, release=lambda: None)


@pytest.fixture(scope="module")
def weights() -> HfWeights:
    return HfWeights({seed: tiny_model(tiny_tokenizer(CONTEXT), seed, CONTEXT, hidden=64) for seed in range(4)})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory, weights: HfWeights
) -> AsyncIterator[Rig]:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), 0, CONTEXT, hidden=64)
    spec = EngineSpec(
        run_id=RUN,
        model=ModelSection(path=str(folder)),
        rollout=RolloutSection(dtype=RolloutDtype.FP32, kv_cache_gb=0.032),
        context_tokens=CONTEXT,
        max_num_seqs=32,
        flush_tokens=64,
        flush_interval_s=60.0,
        seed=0,
    )
    host = Host(INSTANCE, load_engine(DEFAULT_ENGINE), weights)
    with postgres_server.database() as url:
        store = async_store(url)
        rig = Rig(host, Generator(host, TurnStore(store), SegmentWriter(store)), store, weights.versions)
        try:
            await host.start(spec)
            _listen(rig)
            yield rig
        finally:
            await host.shutdown()
            await store.dispose()


def _listen(rig: Rig) -> None:
    """See vLLM's own outputs as they pass."""
    generate = rig.engine._llm.generate

    async def listening(prompt: Any, params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        params.ignore_eos = rig.endless
        outputs = generate(prompt, params, *args, **kwargs)
        try:
            async for output in outputs:
                if output.finished:
                    rig.cached_tokens.append(output.num_cached_tokens)
                    rig.spans.append([span.version for span in output.outputs[0].weight_versions or ()])
                yield output
        finally:
            await outputs.aclose()

    rig.engine._llm.generate = listening


@pytest_asyncio.fixture(loop_scope="module")
async def rig(shared: Rig) -> Rig:
    """Serving version 0, nothing running."""
    shared.endless = False
    await shared.serve(0)
    return shared


async def check(rig: Rig, group: GroupId, prompt: Sequence[int] = PROMPT, temperature: float = 1.0) -> list[Stored]:
    """Every stored log-prob is what the segment's version gives to the token after everything before it."""
    segments, ids = await stored_segments(rig.store, 0, group), list(prompt)
    for segment in segments:
        wanted = logprobs_of(rig.versions[segment.version], [*ids, *segment.ids], temperature)[len(ids) - 1 :]
        worst = max(abs(a - b) for a, b in zip(segment.logprobs, wanted, strict=True))
        assert worst < TOLERANCE, f"segment {segment.seq} of version {segment.version}: {worst}"
        ids += segment.ids
    return segments


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_of_sampled_tokens_equal_those_of_transformers(rig: Rig, temperature: float) -> None:
    group = await rig.new_group()
    made = request(group, 0, 40, seed=3)
    made = made.model_copy(update={"sampling": made.sampling.model_copy(update={"temperature": temperature})})
    result = await rig.generator.generate(made, 1, InEngine())
    segments = await check(rig, group, temperature=temperature)
    assert sum(len(segment.ids) for segment in segments) == result.tokens
    assert rig.spans == [["0"]]


async def test_an_update_changes_every_layer_and_the_tied_head(rig: Rig) -> None:
    assert rig.versions[1].config.tie_word_embeddings
    await rig.serve(1)
    group = await rig.new_group()
    await rig.generate(group, seed=3)
    [segment] = await check(rig, group)
    assert segment.version == 1
    old = logprobs_of(rig.versions[0], [*PROMPT, *segment.ids])[len(PROMPT) - 1 :]
    assert max(abs(a - b) for a, b in zip(segment.logprobs, old, strict=True)) > 0.5
    assert rig.spans == [["1"]]


async def test_an_update_that_fails_midway_is_repaired_by_a_good_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field report 68: the update is closed in vLLM also when it raised, else the next could not begin."""
    from psrl.workers.rollout.staging import StagedWeights

    describe = StagedWeights.describe
    monkeypatch.setattr(StagedWeights, "describe", lambda staged: {**describe(staged), "path": "/nowhere"})
    await rig.host.pause(RUN, interrupt=True)
    with pytest.raises(EngineUnavailable, match="loading version 2 failed midway"):
        await rig.host.pull(RUN, Version(2))
    assert rig.host.report().state is InstanceState.QUARANTINED
    with pytest.raises(EngineUnavailable, match="no weights to serve"):
        await rig.host.resume(RUN)
    monkeypatch.undo()
    await rig.serve(3)
    group = await rig.new_group()
    await rig.generate(group, seed=3)
    assert [segment.version for segment in await check(rig, group)] == [3]


async def test_an_update_interrupted_within_a_layer_is_repaired_by_a_good_one(rig: Rig, weights: HfWeights) -> None:
    """A shape that fits in number only: vLLM fails in the middle of the first layer, with some of it buffered."""
    engine, name = rig.engine, "model.layers.0.self_attn.k_proj.weight"
    wrong = (*reversed(engine._shapes[name]),)
    right, engine._shapes[name] = engine._shapes[name], wrong
    weights.changes[1] = lambda tensors: {**tensors, name: tensors[name].T.contiguous()}
    await rig.host.pause(RUN, interrupt=True)
    with pytest.raises((EngineUnavailable, EngineUnfit), match=r"failed midway|cannot take these weights"):
        await rig.host.pull(RUN, Version(1))
    engine._shapes[name] = right
    await rig.serve(2)
    group = await rig.new_group()
    await rig.generate(group, seed=3)
    assert [segment.version for segment in await check(rig, group)] == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "model.norm.weight"}, r"missing: model\.norm\.weight"),
        (lambda t: {**t, "model.extra": torch.zeros(1)}, r"unknown: model\.extra"),
        (lambda t: {**t, "model.norm.weight": torch.zeros(3)}, r"model\.norm\.weight \[3\] instead of \[64\]"),
        (lambda t: {**t, "model.norm.weight": t["model.norm.weight"] * 1.01}, "log-probs differ from the trainer's"),
    ],
    ids=["missing", "unknown", "shape", "value"],
)
async def test_weights_that_are_not_what_was_published_are_refused(
    rig: Rig, weights: HfWeights, change: Any, message: str
) -> None:
    weights.changes[2] = change
    await rig.host.pause(RUN, interrupt=True)
    with pytest.raises(WeightsRefused if message.startswith("log-probs") else EngineUnfit, match=message):
        await rig.host.pull(RUN, Version(2))
    assert rig.host.report().version == -1


async def test_cached_prefixes_are_used_within_a_version_and_never_across(rig: Rig) -> None:
    """Field report 64."""
    for _ in range(2):
        await rig.generate(await rig.new_group(), max_tokens=4)
    assert rig.cached_tokens == [0, 32]
    await rig.serve(1)
    await rig.generate(await rig.new_group(), max_tokens=4)
    assert rig.cached_tokens == [0]


async def test_a_continued_turn_tells_whether_its_kv_was_kept(rig: Rig) -> None:
    """Kept within a version, as after an abort; dropped by a sync."""
    turn = [*PROMPT, *range(7, 7 + 64)]

    async def cached() -> set[int]:
        asked = EngineRequest(
            f"continued-{len(rig.cached_tokens)}", turn, Sampling(temperature=1, max_tokens=4), "salt", 1
        )
        return {chunk.cached_tokens async for chunk in rig.engine.generate(asked)}

    assert await cached() == {0}
    [kept] = await cached()
    assert len(PROMPT) < kept < len(turn)
    await rig.host.pause(RUN, interrupt=True)
    await rig.host.resume(RUN)
    assert await cached() == {0}


async def test_a_cache_that_was_not_cleared_would_not_be_used_across_versions_either(rig: Rig) -> None:
    await rig.generate(await rig.new_group(), max_tokens=4)
    right = rig.host._holds
    assert right is not None
    rig.host._holds = right.model_copy(update={"version": 7})  # as if an update had left the cache alone
    with pytest.raises(InvariantViolated, match="L5: sampled under 0, taken for version 7"):
        await rig.generate(await rig.new_group(), max_tokens=4)
    rig.host._holds = right
    assert rig.cached_tokens == [0, 0]


async def test_a_sync_in_mid_generation_goes_on_from_the_prefix(rig: Rig) -> None:
    group, budget = await rig.new_group(), 1200
    rig.endless = True
    first = asyncio.create_task(rig.generate(group, 0, budget, seed=1))
    await until(lambda: _sampled(rig, 100))
    await rig.host.pause(RUN, interrupt=True)
    assert rig.spans == [["0"]]
    await rig.serve(1)
    interrupted = await first
    assert interrupted.end is SegmentEnd.INTERRUPTED
    assert 100 <= interrupted.tokens < budget
    rest = await rig.generate(group, 1, budget, seed=1)
    segments = await check(rig, group)
    versions = [segment.version for segment in segments]
    assert (versions[0], versions[-1], sorted(versions)) == (0, 1, versions)
    assert sum(len(segment.ids) for segment in segments) == rest.tokens == interrupted.tokens + rest.new_tokens
    assert (rest.tokens, rest.end) == (budget, SegmentEnd.LENGTH)
    assert rig.spans == [["1"]]


async def _sampled(rig: Rig, tokens: int) -> bool:
    return rig.host.gate.tokens_inside >= len(PROMPT) + tokens


async def test_a_request_that_is_moved_keeps_its_tokens_and_reads_no_cache_of_another_version(rig: Rig) -> None:
    """As a migration does it: interrupted by name, beside one that goes on; continued here, and after a sync."""
    await rig.serve(1)
    rig.endless = True
    moved, stays = await rig.new_group(), await rig.new_group()
    running = [asyncio.create_task(rig.generate(group, max_tokens=1800)) for group in (moved, stays)]
    await until(lambda: _gives_tokens(rig, 2))
    [name] = [one for one in rig.host.gate.requests if one.startswith(moved)]
    await rig.host.interrupt_requests(RUN, [name])
    first = await running[0]
    assert (first.end, first.versions) == (SegmentEnd.INTERRUPTED, (1,))
    assert first.tokens > 0
    assert not running[1].done()
    await rig.generate(moved, number=1, max_tokens=first.tokens + 20)
    assert rig.cached_tokens[-1] > 0, "the same version: its KV is good"
    await rig.serve(2)
    second = await running[1]
    assert (second.end, second.versions) == (SegmentEnd.INTERRUPTED, (1,))
    last = await rig.generate(stays, number=1, max_tokens=second.tokens + 20)
    assert rig.cached_tokens == [0], "another version: none of it is read (L1)"
    assert (last.tokens, last.versions) == (second.tokens + 20, (2,))


async def _gives_tokens(rig: Rig, requests: int) -> bool:
    inside = rig.host.gate.requests.values()
    return len(inside) == requests and all(one.sampled for one in inside)


async def test_a_request_aborted_before_its_first_token_stores_nothing(rig: Rig) -> None:
    group = await rig.new_group()
    await rig.engine.pause(True)
    waiting = asyncio.create_task(rig.generate(group))
    await until(lambda: _sampled(rig, 0))
    await rig.host.pause(RUN, interrupt=True)
    result = await waiting
    assert (result.end, result.tokens, await stored_segments(rig.store, 0, group)) == (SegmentEnd.INTERRUPTED, 0, [])


async def test_cancellation_reaches_the_engine(rig: Rig) -> None:
    group = await rig.new_group()
    rig.endless = True
    began = time.perf_counter()
    running = asyncio.create_task(rig.generate(group, max_tokens=1900))
    await until(lambda: _sampled(rig, 70))
    sampled_70_s = time.perf_counter() - began
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    began = time.perf_counter()
    # Waits for whatever still runs in the engine's own process: the rest of the budget is 26 times as long.
    await rig.host.pause(RUN, interrupt=False)
    assert time.perf_counter() - began < 13 * sampled_70_s
    assert rig.engine._llm.get_num_unfinished_requests() == 0
    assert rig.host.gate.inside == 0


async def test_an_eos_token_ends_the_turn(rig: Rig, tmp_path: Path) -> None:
    """With 128 tokens and a budget of 1900 a stop token is all but certain to be sampled."""
    group = await rig.new_group()
    result = await rig.generate(group, max_tokens=1900, seed=1)
    assert result.end is SegmentEnd.STOP
    segments = await check(rig, group)
    eos = rig.versions[0].config.eos_token_id
    assert [token for segment in segments for token in segment.ids].count(eos) == 1
    assert segments[-1].ids[-1] == eos


async def test_many_requests_at_once_have_right_logprobs(rig: Rig) -> None:
    groups = [await rig.new_group([7 + i, 8, 9]) for i in range(24)]
    await asyncio.gather(*(rig.generate(group, max_tokens=12) for group in groups))
    for i, group in enumerate(groups):
        await check(rig, group, [7 + i, 8, 9])


async def test_prompts_that_fill_more_than_one_step_of_prefill_are_answered_with_right_logprobs(rig: Rig) -> None:
    prompts = [[7 + (i * 7 + number) % 90 for i in range(300)] for number in range(16)]
    assert sum(map(len, prompts)) > 2 * rig.engine._llm.vllm_config.scheduler_config.max_num_batched_tokens
    groups = [await rig.new_group(prompt) for prompt in prompts]
    turns = (rig.generate(group, max_tokens=4, seed=number) for number, group in enumerate(groups))
    results = await asyncio.gather(*turns)
    assert {result.end for result in results} <= {SegmentEnd.LENGTH, SegmentEnd.STOP}
    for prompt, group in zip(prompts, groups, strict=True):
        await check(rig, group, prompt)
