"""`python -m tests.benchmarks.plain_loop`: the quick start as one process without a control plane, the yardstick.

The same engines, trainer, reward and sizes; generate, score, update, load, in turn and in memory: nothing is durable
and nothing overlaps. Reads its task from standard input in one line of JSON; for every further line it trains so many
steps as the task says and prints the result, one line of JSON too.
"""

import asyncio
import json
import sys
import time
from itertools import count, islice
from typing import Any

import torch

from psrl.activities.data.dataset import Dataset, Prompt, load_dataset
from psrl.activities.data.tokenizer import load_tokenizer
from psrl.activities.rewards.judge import Judge, Question
from psrl.activities.store.codec import decode_ids
from psrl.activities.training.batch import SampledSequence, TrainBatch
from psrl.activities.weights.transport import Lease
from psrl.schemas.config import RunConfig, parse_config
from psrl.schemas.errors import WeightsRefused
from psrl.schemas.ids import RunId, Version
from psrl.schemas.messages.rewards import RewardSample
from psrl.schemas.messages.rollout import EngineSpec
from psrl.schemas.messages.run import RolloutSettings
from psrl.schemas.seeds import mixed
from psrl.schemas.weights import WeightProbe
from psrl.workers.rollout.engine import DEFAULT_ENGINE, Engine, EngineRequest, StreamEnd, load_engine
from psrl.workers.trainer.backend import BackendRun
from psrl.workers.trainer.backends import backends
from psrl.workers.trainer.main import prepare_torch
from psrl.workers.trainer.world import World

RUN = RunId("plain")


class NothingPublished:
    """The loop hands its weights on in memory."""

    def probe(self, version: int) -> WeightProbe | None:
        return None

    def lease(self, version: int) -> Lease:
        raise WeightsRefused(f"version {version} is not published")


class Loop:
    def __init__(self, config: RunConfig, dataset: Dataset, engines: list[Engine]) -> None:
        self._config, self._prompts, self._engines = config, dataset.train, engines
        self._settings, self._reward = RolloutSettings.of(config), Judge(config.reward)
        self._tokenizer = load_tokenizer(config.model.path, config.model.trust_remote_code)
        self._batches: dict[int, TrainBatch] = {}
        run = BackendRun(RUN, config, self._batches.__getitem__, NothingPublished())
        self._backend = backends(World.from_environment(), prepare_torch())[config.model_engine](run)
        self._requests = count()

    async def begin(self) -> None:
        self._backend.start()
        for engine in self._engines:
            await engine.start(EngineSpec.of(RUN, self._config))
        await self._load(0)

    async def step(self, number: int) -> int:
        """Returns how many trajectories were trained on."""
        groups = self._config.psrl.staleness_buffer_entries
        first = number * groups
        chosen = [self._prompts[(first + place) % len(self._prompts)] for place in range(groups)]
        sampled = await asyncio.gather(*(self._group(place, prompt, number) for place, prompt in enumerate(chosen)))
        self._batches[number] = TrainBatch(tuple(sequence for group in sampled for sequence in group))
        step = self._backend.step(number)
        step.log_probs()
        step.advantages()
        step.update()
        await self._load(number + 1)
        return len(self._batches.pop(number).sequences)

    async def _group(self, place: int, prompt: Prompt, version: int) -> list[SampledSequence]:
        """On one engine, as the real path keeps a group together."""
        engine = self._engines[place % len(self._engines)]
        members = range(self._settings.needed)
        return list(await asyncio.gather(*(self._member(engine, place, prompt, version, member) for member in members)))

    async def _member(self, engine: Engine, place: int, prompt: Prompt, version: int, member: int) -> SampledSequence:
        prompt_ids, ids, logprobs, end = decode_ids(prompt.ids), [], [], None
        request = EngineRequest(
            request_id=str(next(self._requests)),
            prompt_ids=prompt_ids,
            sampling=self._settings.sampling.model_copy(update={"seed": mixed(version, place, member)}),
            cache_salt=str(version),
            chunk_tokens=32,
        )
        async for chunk in engine.generate(request):
            ids += chunk.token_ids
            logprobs += chunk.logprobs
            end = chunk.end
        sample = RewardSample(
            data_source=prompt.data_source,
            prompt_text=prompt.text,
            response_text=self._tokenizer.decode(ids, skip_special_tokens=True),
            ground_truth=prompt.ground_truth,
            extra=prompt.extra,
            prompt_ids=prompt_ids,
            response_ids=ids,
        )
        return SampledSequence(
            group=place,
            episode=member,
            prompt_tokens=len(prompt_ids),
            ids=torch.tensor([*prompt_ids, *ids]),
            rollout=torch.tensor(logprobs),
            reward=self._judge(sample),
            versions=torch.full((len(ids),), version, dtype=torch.int32),
            mask=torch.ones(len(ids), dtype=torch.bool),
            truncated=end is StreamEnd.LENGTH,
        )

    def _judge(self, sample: RewardSample) -> float:
        question = Question((sample,))
        (found,) = self._reward.read(question, self._reward.ask(question))
        return found.reward

    async def _load(self, version: int) -> None:
        tensors = self._backend.export()
        for engine in self._engines:
            await engine.pause(interrupt=True)
            await engine.load(tensors, Version(version))
            await engine.resume()


async def run(task: dict[str, Any]) -> None:
    config = parse_config(task["config"])
    make_engine = load_engine(DEFAULT_ENGINE)
    engines = [make_engine() for _ in range(config.psrl.deployment.n_rollout_instances)]
    try:
        loop = Loop(config, load_dataset(config), engines)
        await loop.begin()
        numbers = count()
        for number in islice(numbers, task["warm_up"]):
            await loop.step(number)
        while await asyncio.to_thread(sys.stdin.readline):
            began = time.monotonic()
            trained = [await loop.step(number) for number in islice(numbers, task["steps"])]
            print(json.dumps({"trajectories": sum(trained), "seconds": time.monotonic() - began}), flush=True)
    finally:
        for engine in engines:
            engine.shutdown()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.stdin.readline())))
