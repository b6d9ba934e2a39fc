"""A whole run of the quick start against a plain loop with the same engines, trainer, reward and sizes: what everything
that makes a run durable, asynchronous and restartable costs, or gains, in trajectories per second."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any, BinaryIO

import psycopg
import yaml

from psrl.schemas.environment import HOME_VARIABLE
from psrl.schemas.stack import load_stack
from tests.benchmarks.assembly import REPOSITORY

QUICK_START = REPOSITORY / "examples/arithmetic/quickstart.yaml"
RUN = "whole"
WARM_UP, STEPS = 4, 24
TIMEOUT_S = 600
PUBLISHED = (
    "select version, extract(epoch from published_at) from weight_versions where run_id = %s and version in (%s, %s)"
)


async def measure() -> None:
    """In turn, the loop before and after: virtual machines drift. It keeps still meanwhile."""
    values = yaml.safe_load(QUICK_START.read_text())
    with tempfile.TemporaryFile() as log:
        loop = await _start_loop(values, log)
        try:
            before = await _loop(loop, log)
            ours = await asyncio.to_thread(_run, values)
            after = await _loop(loop, log)
        finally:
            loop.terminate()
            await loop.wait()
    ratio = ours / ((before + after) / 2)
    print(f"   the quick start's sizes, {STEPS} steps after {WARM_UP}")
    print(f"   whole run {ours:.0f} trajectories/s; plain loop {before:.0f} and {after:.0f}: ratio {ratio:.2f}")


def _run(values: dict[str, Any]) -> float:
    """Trajectories per second, by the times at which versions were published."""
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        home = Path(folder) / "home"
        _psrl(home, "up", "--instances", str(values["psrl"]["deployment"]["n_rollout_instances"]))
        try:
            steps = f"trainer.total_training_steps={WARM_UP + STEPS}"
            _psrl(home, "train", str(QUICK_START), "--run", RUN, steps, "trainer.test_freq=-1")
            url = load_stack(home).postgres_url.replace("+psycopg", "")
            with psycopg.connect(url) as connection:
                rows = connection.execute(PUBLISHED, (RUN, WARM_UP, WARM_UP + STEPS)).fetchall()
        finally:
            _psrl(home, "down")
    times = {version: float(at) for version, at in rows}
    per_step = values["psrl"]["staleness_buffer_entries"] * values["psrl"]["rollout_n"]
    return STEPS * per_step / (times[WARM_UP + STEPS] - times[WARM_UP])


def _psrl(home: Path, *arguments: str) -> None:
    environment = {**os.environ, HOME_VARIABLE: str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "psrl.workers.cli.main", *arguments]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)


async def _start_loop(values: dict[str, Any], log: BinaryIO) -> Process:
    loop = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.benchmarks.plain_loop"),
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    await _say(loop, json.dumps({"config": values, "warm_up": WARM_UP, "steps": STEPS}))
    return loop


async def _loop(loop: Process, log: BinaryIO) -> float:
    """Trajectories per second."""
    assert loop.stdout is not None
    await _say(loop, "go")
    async with asyncio.timeout(TIMEOUT_S):
        async for line in loop.stdout:
            if line.startswith(b"{"):
                result = json.loads(line)
                return float(result["trajectories"] / result["seconds"])
    log.seek(0)
    raise RuntimeError(f"the plain loop ended early: {log.read().decode()[-2000:]}")


async def _say(loop: Process, line: str) -> None:
    assert loop.stdin is not None
    loop.stdin.write(line.encode() + b"\n")
    await loop.stdin.drain()
