"""A real vLLM engine process that is killed or frozen in mid-generation: noticed, replaced, back at its version."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowFailureError
from transformers import Qwen2ForCausalLM

from psrl.schemas.messages.rollout import InstanceState, SegmentEnd
from psrl.schemas.stack import Stack
from tests.e2e.test_rollout_orphans import probe_of, spec_of
from tests.support.rollout import add_group, call, ids_of, stored_segments, until, with_engine
from tests.support.rollout_process import Site, end, open_site
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
CONTEXT = 16384
STALL_S = 4.0


@pytest.fixture
async def site(temporal_client: Client, stack: Stack, store: AsyncEngine) -> AsyncIterator[Site]:
    await add_group(store)
    async with open_site(temporal_client, stack, store) as site:
        yield site


def engine_processes(pid: int) -> list[psutil.Process]:
    """Those that compute: the resource tracker of multiprocessing is not one of them."""
    children = psutil.Process(pid).children(recursive=True)
    return [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.mark.parametrize(
    ("fault", "reason"), [(signal.SIGKILL, "the engine died"), (signal.SIGSTOP, "the engine is stuck")]
)
async def test_an_engine_process_that_is_killed_or_frozen_is_replaced(
    site: Site, tmp_path: Path, fault: signal.Signals, reason: str
) -> None:
    folder = make_tiny_model(tmp_path / "model", 0, CONTEXT, hidden=64)
    model = Qwen2ForCausalLM.from_pretrained(folder)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    await site.publish(0, tensors, probe_of(model))
    instance = site.instance()
    host = site.start_host(instance)
    spec = with_engine(spec_of(folder), stall_timeout_s=STALL_S, kv_cache_gb=0.064)
    try:
        await site.drive(instance, spec.model_copy(update={"context_tokens": CONTEXT, "flush_tokens": 8}))
        served = await site.serving(instance, 0)
        # Greedy: this model then repeats itself and never samples its stop token.
        lost = await site.generate(instance, call(max_tokens=CONTEXT - 100, top_k=1))

        async def some_tokens() -> bool:
            return bool(await stored_segments(site.store))

        await until(some_tokens)
        engines = engine_processes(served.pid)
        for process in engines:
            process.send_signal(fault)
        began = time.monotonic()
        with pytest.raises(WorkflowFailureError) as caught:
            await lost.result()
        noticed_s = time.monotonic() - began
        assert "EngineUnavailable" in str(caught.value.cause)

        async def told_and_back() -> bool:
            changes = await site.changes()
            return any(reason in change.reason for change in changes) and changes[-1].state is InstanceState.SERVING

        await until(told_and_back, timeout_s=60)
        again = await site.serving(instance, 0)
        back_s = time.monotonic() - began
        assert again.pid == served.pid, "the host lives on"
        print(f"{fault.name}: callers told after {noticed_s:.1f} s, serving again after {back_s:.1f} s")
        kept = len(ids_of(await stored_segments(site.store)))
        rest = await (await site.generate(instance, call(number=1, max_tokens=kept + 20, top_k=1))).result()
        assert rest.end in (SegmentEnd.LENGTH, SegmentEnd.STOP)
        assert rest.tokens == kept + rest.new_tokens
        gone, alive = await asyncio.to_thread(psutil.wait_procs, engines, 60)
        assert (len(gone), alive) == (len(engines), [])
    finally:
        end(host)
