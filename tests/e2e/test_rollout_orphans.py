"""No engine process outlives its host, however the host ends."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import torch
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from transformers import Qwen2ForCausalLM

from psrl.schemas.config import ModelSection
from psrl.schemas.messages.rollout import EngineSpec, SegmentEnd
from psrl.schemas.stack import Stack
from psrl.schemas.weights import WeightProbe
from tests.support.rollout import SPEC, add_group, call, stored_segments
from tests.support.rollout_process import Site, end, open_site
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
PROBE_IDS = (7, 20, 33, 46)


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine) -> AsyncIterator[Site]:
    await add_group(store)
    async with open_site(temporal_client, stack, store) as site:
        yield site


def spec_of(folder: Path) -> EngineSpec:
    return SPEC.model_copy(update={"model": ModelSection(path=str(folder))})


def probe_of(model: Qwen2ForCausalLM) -> WeightProbe:
    with torch.no_grad():
        table = model(torch.tensor([PROBE_IDS])).logits[0].log_softmax(-1)
    values = tuple(table[i, token].item() for i, token in enumerate(PROBE_IDS[1:]))
    return WeightProbe(token_ids=PROBE_IDS, logprobs=values)


async def test_the_engine_ends_with_its_host(site: Site, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", hidden=64)
    model = Qwen2ForCausalLM.from_pretrained(folder)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    await site.publish(0, tensors, probe_of(model))
    names = (site.instance(0), site.instance(1))
    hosts = [site.start_host(name) for name in names]
    try:
        for name in names:
            await site.drive(name, spec_of(folder))
        for name in names:
            await site.serving(name, 0)
        result = await (await site.generate(names[0], call(max_tokens=20))).result()
        assert result.end in (SegmentEnd.LENGTH, SegmentEnd.STOP)
        assert sum(len(segment.ids) for segment in await stored_segments(site.store)) == result.tokens
        children = [psutil.Process(host.pid).children(recursive=True) for host in hosts]
        assert all(children)
        hosts[0].send_signal(signal.SIGKILL)
        hosts[1].send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(hosts[1].wait, 60) == 0
        gone, alive = await asyncio.to_thread(psutil.wait_procs, [*children[0], *children[1]], 60)
        assert (len(gone), alive) == (len(children[0]) + len(children[1]), [])
    finally:
        for host in hosts:
            end(host)
