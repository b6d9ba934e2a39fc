"""How the orchestrator's memory grows over a long undisturbed run: a real stack, a scripted engine, a tiny model."""

import asyncio
import tempfile
from pathlib import Path

import psutil
import psycopg

from psrl.workers.stack.parts import ORCHESTRATOR
from tests.chaos import run as runs
from tests.chaos.site import Site
from tests.support.scripted_engine import Script

STEPS, WARM_UP, EVERY = 1000, 200, 100
RUN = "long"
VERSION = "select coalesce(max(version), 0) from weight_versions where run_id = %s"
GOAL_BYTES = 1024


async def measure() -> None:
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        site = Site(Path(folder), script=Script(token_s=0.001), say=lambda line: None)
        try:
            await site.up()
            await runs.start(site, RUN, runs.configuration(site.home, runs.Shape(steps=STEPS, save_freq=100)))
            print(f"   conditions: {STEPS} steps of {runs.BATCH_GROUPS} groups of {runs.GROUP_SIZE}, eta 2", flush=True)
            await _watch(site)
        finally:
            site.down()


async def _watch(site: Site) -> None:
    seen: dict[int, int] = {}
    for version in range(WARM_UP, STEPS + 1, EVERY):
        while await _version(site) < version:  # noqa: ASYNC110 - rows of another process
            await asyncio.sleep(1)
        pid = site.pid(ORCHESTRATOR)
        assert pid is not None
        seen[version] = psutil.Process(pid).memory_info().rss
        print(f"   after step {version:5}: {seen[version] / 1e6:.1f} MB", flush=True)
    trajectories = (STEPS - WARM_UP) * runs.BATCH_GROUPS * runs.GROUP_SIZE
    growth = (seen[max(seen)] - seen[WARM_UP]) / trajectories
    print(f"   {growth:.0f} bytes per trajectory = {growth / GOAL_BYTES:.2f} of the goal of {GOAL_BYTES}")


async def _version(site: Site) -> int:
    async with await psycopg.AsyncConnection.connect(site.store) as connection:
        found = await connection.execute(
            "select coalesce(max(version), 0) from weight_versions where run_id = %s", (RUN,)
        )
        row = await found.fetchone()
    return int(row[0]) if row else 0
