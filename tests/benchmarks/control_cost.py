"""Processor milliseconds that the control plane spends on one single-turn trajectory, per process.

The engine is scripted: its tokens cost next to nothing, so that what is left is the price of durability: Temporal's
server, the workflows, the scoring, the store. Goals: at most 3 ms for server and orchestrator together, 7 ms for all
processes.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.assembly import SCRIPTED, Assembly, Shape, assembled
from tests.benchmarks.cpu_time import cpu_seconds, spent
from tests.support.runs import sums, write_jsonl
from tests.support.tiny_model import make_tiny_model

GROUPS, WARM_UP = 128, 48
CONTROL = ("temporal", "orchestrator")
GOAL_MS, GOAL_ALL_MS = 3.0, 7.0


def scripted_shape(folder: Path, **changes: object) -> Shape:
    values: dict[str, object] = {
        "model": make_tiny_model(folder / "model"),
        "prompts": write_jsonl(folder / "prompts.jsonl", sums(64)),
        **{"prompt_tokens": 20, "new_tokens": 6, "trajectories": 8, "instances": 2, "seqs": 256},
        **{"engine": SCRIPTED, **changes},
    }
    return Shape(**values)  # type: ignore[arg-type]


async def cost(assembly: Assembly, groups: int = GROUPS) -> Mapping[str, float]:
    """Milliseconds per trajectory, by process."""
    await assembly.play(await assembly.draw(WARM_UP))
    drawn, pids = await assembly.draw(groups), assembly.pids()
    before = cpu_seconds(pids)
    await assembly.play(drawn)
    await asyncio.sleep(1.0)  # what is written and collected afterwards belongs to the work
    trajectories = groups * assembly.shape.trajectories
    return {name: 1000 * value / trajectories for name, value in spent(before, cpu_seconds(pids)).items()}


async def measure() -> None:
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as folder:
        async with assembled(scripted_shape(Path(folder))) as assembly:
            began = time.monotonic()
            found = await cost(assembly)
            elapsed = time.monotonic() - began
    print_cost(found, elapsed)


def print_cost(found: Mapping[str, float], elapsed: float) -> None:
    control = sum(found[name] for name in CONTROL)
    print(f"   conditions: {GROUPS} groups of 8 trajectories of 6 tokens, 2 scripted engines, after {WARM_UP} groups")
    for name, value in sorted(found.items(), key=lambda item: -item[1]):
        print(f"   {name:14s} {value:7.2f} ms CPU per trajectory")
    print(f"   server + orchestrator {control:.2f} ms = {control / GOAL_MS:.2f} of the goal of {GOAL_MS:g} ms")
    every = sum(found.values())
    print(f"   all processes {every:.2f} ms = {every / GOAL_ALL_MS:.2f} of the goal of {GOAL_ALL_MS:g} ms")
    print(f"   elapsed {elapsed:.0f} s")
