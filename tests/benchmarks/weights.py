"""Publishing and pulling half a gigabyte of weights against a plain copy of the same bytes in memory.

Publish: shards, checksums, fsync, rename, the row. Pull: the row, checksums, mapped tensors. With a tiny model on vLLM
also what a whole update of a serving instance takes.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from sqlalchemy.ext.asyncio import AsyncEngine

from psrl.activities.store.connections import async_store
from psrl.activities.weights.transports import open_transport
from psrl.activities.weights.versions import publish_version
from psrl.schemas.config import PsMode
from psrl.schemas.ids import RunId, Version
from psrl.schemas.weights import WeightProbe
from psrl.workers.rollout.source import PublishedWeights
from tests.benchmarks.assembly import RUN, Assembly, assembled, version_of
from tests.benchmarks.generation import TINY, long_shape
from tests.support.postgres import running_postgres
from tests.support.rollout import add_group

TENSORS, ROWS, COLUMNS = 32, 2048, 2048
"""32 float32 matrices: 0.54 GB."""
ROUNDS = 6
UPDATES = 4


class Clock:
    """Seconds of the fastest round, by name."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.best[name] = min(self.best.get(name, float("inf")), time.monotonic() - began)


async def measure() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="psrl-bench-") as name,
        running_postgres() as server,
        server.database() as url,
    ):
        store = async_store(url)
        try:
            await _transport(store, Path(name) / "weights")
        finally:
            await store.dispose()
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as name:
        async with assembled(long_shape(Path(name), 1, TINY)) as assembly:
            await _updates(assembly)


async def _transport(store: AsyncEngine, root: Path) -> None:
    tensors = {f"layer.{number:02d}": torch.randn(ROWS, COLUMNS) for number in range(TENSORS)}
    size = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
    run, transport, clock = RunId("transport"), open_transport(PsMode.FILE, root), Clock()
    probe = WeightProbe(token_ids=(1, 2), logprobs=(0.0,))
    await add_group(store, run=run)  # a version belongs to a run
    for number in range(ROUNDS):
        with clock.timed("copy"):
            copies = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors.values()]
        del copies
        with clock.timed("publish"):
            manifest = await asyncio.to_thread(transport.write, run, Version(number), tensors, probe)
            async with store.begin() as connection:
                await connection.run_sync(publish_version, manifest)
        with clock.timed("pull"), await PublishedWeights(store, (transport,)).lease(run, Version(number)) as leased:
            for tensor in leased.tensors.values():  # mapped: the bytes come with the first use
                tensor.sum()
        transport.remove(run, Version(number))
    print(f"   {size:.2f} GB in {TENSORS} float32 tensors, file transport, best of {ROUNDS}")
    for name, seconds in clock.best.items():
        ratio = seconds / clock.best["copy"]
        print(f"   {name:8s} {seconds:6.3f} s {size / seconds:6.2f} GB/s, {ratio:5.1f} times the copy", flush=True)
    both = clock.best["publish"] + clock.best["pull"]
    print(f"   publish + pull {both:.2f} s = {both / clock.best['copy']:.1f} times the copy")


async def _updates(assembly: Assembly) -> None:
    """Pause, pull, probe and resume of a serving vLLM instance, as `RolloutInstance` does at a sync."""
    shape, stack = assembly.shape, assembly.stack
    tensors, probe = version_of(shape, assembly.config)
    took = []
    for number in range(1, UPDATES + 1):
        began = time.monotonic()
        manifest = open_transport(PsMode.FILE, stack.weights_dir).write(RUN, Version(number), tensors, probe)
        async with assembly.store.begin() as connection:
            await connection.run_sync(publish_version, manifest)
        published = time.monotonic()
        await assembly.sync(Version(number))
        took.append((published - began, time.monotonic() - published))
    published_s, served_s = min(p for p, _ in took), min(s for _, s in took)
    size = sum(tensor.nbytes for tensor in tensors.values()) / 1e6
    print(f"   tiny model ({size:.1f} MB) on vLLM, best of {UPDATES}: published in {1000 * published_s:.0f} ms, then")
    print(
        f"   signal to serving (pause, pull, load, probe, resume, workflow steps) {1000 * served_s:.0f} ms", flush=True
    )
