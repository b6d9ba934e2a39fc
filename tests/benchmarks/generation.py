"""Generation through the whole path of a run (group workflow, route, host, vLLM, segments in PostgreSQL, score)
against vLLM's own `LLM.generate` with the same engines, prompts and sampling. Goal for long answers: 0.95."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import select

from psrl.activities.store.codec import decode_ids
from psrl.schemas.ids import GroupId
from psrl.schemas.tables import Group
from tests.benchmarks.assembly import REPOSITORY, Assembly, Shape, assembled, engine_spec
from tests.benchmarks.cpu_time import cpu_seconds
from tests.support.runs import sums, write_jsonl
from tests.support.tiny_model import make_tiny_model

GOAL = 0.95
QUICK_START = REPOSITORY / ".cache/arithmetic/model"
EOS = 2
MEDIUM, TINY = 1024, 128
"""Hidden sizes of random models. A trajectory of the tiny one costs its engine no more processor time than the control
plane: the worst case, which no model worth training is near."""


def long_shape(folder: Path, instances: int, hidden: int = MEDIUM) -> Shape:
    """Answers of 256 tokens, 64 sequences per engine."""
    return Shape(
        model=_endless_model(folder / f"model-{hidden}", hidden),
        prompts=write_jsonl(folder / "prompts.jsonl", sums(64, first=100)),
        prompt_tokens=32,
        new_tokens=256,
        trajectories=8,
        instances=instances,
        seqs=64,
        kv_cache_gb=0.256,
    )


def short_shape(folder: Path) -> Shape:
    """The quick start's: its model, answers of at most 6 tokens, two engines, 256 sequences each."""
    return Shape(
        model=QUICK_START,
        prompts=write_jsonl(folder / "prompts.jsonl", sums(9)),
        prompt_tokens=16,
        new_tokens=6,
        trajectories=8,
        instances=2,
        seqs=256,
    )


async def measure() -> None:
    """One engine: the second core is left to everything else, as a GPU would leave all of them."""
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as name:
        folder = Path(name)
        await compare("256-token answers, medium model, 1 engine", long_shape(folder, 1), 24)
        await compare("quick start: 6-token answers, 2 engines", short_shape(folder), 48)


async def measure_saturated() -> None:
    """As many engines as cores, and an engine that is hardly more work than the control plane: the worst cases."""
    with tempfile.TemporaryDirectory(prefix="psrl-bench-") as name:
        folder = Path(name)
        await compare("256-token answers, medium model, 2 engines", long_shape(folder, 2), 32)
        await compare("256-token answers, tiny model, 1 engine", long_shape(folder, 1, TINY), 32)


@dataclass(frozen=True)
class Played:
    """What the whole path did, and the same work as a task for plain vLLM."""

    tokens_per_s: float
    control_cores: float
    """Cores that everything but the engines was busy on."""
    task: dict[str, Any]
    prompts: list[list[int]]


async def compare(text: str, shape: Shape, groups: int) -> None:
    """In turn: neither has the other's engines beside it. Virtual machines drift, so vLLM alone is measured before and
    after; in between, beside a process that keeps another core as busy as the control plane did."""
    ours = await _play(shape, groups)
    alone = [await _offline(ours.task, ours.prompts, shape.instances)]
    free = (psutil.cpu_count() or 1) - shape.instances
    beside = await _beside_neighbour(ours, shape.instances, free) if free > 0 else None
    alone.append(await _offline(ours.task, ours.prompts, shape.instances))
    rates = " and ".join(f"{rate:.0f}" for rate in alone)
    print(f"   {text} ({groups} groups of {shape.trajectories}, {shape.seqs} sequences per engine):")
    print(f"      {ours.tokens_per_s:.0f} tokens/s against {rates} of LLM.generate alone:")
    print(f"      ratio {ours.tokens_per_s * len(alone) / sum(alone):.2f}; goal for long answers {GOAL:.2f}")
    print(f"      everything but the engines took {ours.control_cores:.2f} cores", flush=True)
    if beside is not None:
        print(f"      LLM.generate beside a process that takes as much: {beside:.0f} tokens/s", flush=True)


async def _play(shape: Shape, groups: int) -> Played:
    async with assembled(shape) as assembly:
        await assembly.play(await assembly.draw(4 * shape.instances))
        drawn = await assembly.draw(groups)
        prompts = [ids for ids in await _prompts(assembly, drawn) for _ in range(shape.trajectories)]
        # As a run does: so many groups that every engine is full and a few wait.
        in_flight = 2 * shape.instances * shape.seqs // shape.trajectories
        began, control = time.monotonic(), _control_seconds(assembly)
        reports = await assembly.play(drawn, wave=min(32, in_flight), in_flight=in_flight)
        elapsed, tokens = time.monotonic() - began, sum(report.tokens for report in reports)
        cores = (_control_seconds(assembly) - control) / elapsed
        spec, sampling = engine_spec(shape, assembly.config), assembly.sampling()
    task = {"spec": spec.model_dump(mode="json"), "sampling": sampling.model_dump(mode="json"), "warm_up": 32}
    return Played(tokens / elapsed, cores, task, prompts)


def _control_seconds(assembly: Assembly) -> float:
    """Processor seconds of everything but the engines, which are the hosts' children."""
    engines = [child for host in assembly.hosts.values() for child in psutil.Process(host.pid).children(recursive=True)]
    pids = {str(engine.pid): engine.pid for engine in engines}
    return sum(cpu_seconds(assembly.pids()).values()) - sum(cpu_seconds(pids).values())


async def _beside_neighbour(ours: Played, engines: int, free_cores: int) -> float:
    share = min(ours.control_cores / free_cores, 1.0)
    neighbour = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.benchmarks.neighbour", f"{share:.3f}", cwd=REPOSITORY
    )
    try:
        return await _offline(ours.task, ours.prompts, engines)
    finally:
        neighbour.kill()
        await neighbour.wait()


async def _prompts(assembly: Assembly, groups: Sequence[GroupId]) -> list[list[int]]:
    query = select(Group.prompt_ids).where(Group.group_id.in_(groups)).order_by(Group.group_id)
    async with assembly.store.connect() as connection:
        return [decode_ids(ids) for ids in await connection.scalars(query)]


async def _offline(task: dict[str, Any], prompts: list[list[int]], engines: int) -> float:
    """Tokens per second of all engines, each with its share, started together."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.benchmarks.offline"),
            cwd=REPOSITORY,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for _ in range(engines)
    ]
    try:
        for number, process in enumerate(processes):
            await _tell(process, json.dumps({**task, "prompts": prompts[number::engines]}))
        for process in processes:
            await _hear(process, "ready")
        for process in processes:
            await _tell(process, "go")
        results = [json.loads(await _hear(process, "{")) for process in processes]
        return float(sum(r["tokens"] for r in results) / max(r["seconds"] for r in results))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _tell(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")
    await process.stdin.drain()


async def _hear(process: asyncio.subprocess.Process, start: str) -> str:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line.decode().startswith(start):
            return line.decode()
    raise RuntimeError("vLLM ended before it answered")


def _endless_model(folder: Path, hidden: int) -> Path:
    """Random weights whose end-of-answer token has next to no probability, so that answers have their full length."""
    if not folder.exists():
        make_tiny_model(folder, context_tokens=512, hidden=hidden)
        file = folder / "model.safetensors"
        tensors = load_file(file)
        embedding = tensors["model.embed_tokens.weight"].clone()
        embedding[EOS] = torch.zeros_like(embedding[EOS])
        save_file({**tensors, "model.embed_tokens.weight": embedding}, file, metadata={"format": "pt"})
    return folder
