"""One calibration: an engine is started as a run would start it, measured, and its entry written into the file."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.config import RunConfig
from ...schemas.cost_model import CostModel, layout
from ...schemas.errors import UserError
from ...schemas.ids import RunId
from ...schemas.messages.rollout import EngineSpec
from ..rollout.engine import DEFAULT_ENGINE, load_engine
from ..whole import write_whole
from .fit import Fit, fit
from .measured import StepTime
from .profile import Profiler

Say = Callable[[str], None]
WARM_UP = (2, 1)
"""Requests and prompt tokens of a load that is not counted: the first steps of an engine are its slowest."""


@dataclass(frozen=True, slots=True)
class Calibration:
    entry: str
    steps: tuple[StepTime, ...]
    fit: Fit


async def calibrate(
    config: RunConfig, most_requests: int | None = None, say: Say = print, engine_path: str = DEFAULT_ENGINE
) -> Calibration:
    """`most_requests`: at once; null: as many as the engine has slots for."""
    spec = EngineSpec.of(RunId("calibrate"), config)
    engine = load_engine(engine_path)()
    try:
        await engine.start(spec)
        profiler = Profiler(engine, spec.context_tokens)
        await profiler.measure(*WARM_UP)
        steps: list[StepTime] = []
        for requests, prompt in profiler.loads(min(spec.max_num_seqs, most_requests or spec.max_num_seqs)):
            found = await profiler.measure(requests, prompt)
            steps += found
            say(
                f"{requests:5} requests of {prompt} tokens: "
                + ", ".join(f"{1000 * one.seconds:.2f} ms" for one in found[-1:])
            )
    finally:
        await asyncio.to_thread(engine.shutdown)
    return Calibration(layout(), tuple(steps), fit(steps))


def write_entry(path: Path, done: Calibration, model: str) -> None:
    """Beside the entries that the file has. Raises `UserError`."""
    about = {
        "model": model,
        "loads": len(done.steps),
        "mean_error": done.fit.mean_error,
        "worst_error": done.fit.worst_error,
    }
    entry = done.fit.cost.model_dump(exclude={"schema_version"}) | {"fit": about}
    entries = read_entries(path) | {done.entry: entry}
    try:
        write_whole(json.dumps(entries, indent=1) + "\n", path)
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror}") from error


def read_entries(path: Path) -> dict[str, Any]:
    """Of a file that may be there. Raises `UserError`."""
    if not path.exists():
        return {}
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"--out {path} exists and is no JSON ({error}); allowed: a cost model's file, or a new one"
        ) from error
    if not isinstance(entries, dict):
        raise UserError(f"--out {path} exists and holds no JSON object; allowed: a cost model's file, or a new one")
    return entries


def table(steps: tuple[StepTime, ...], cost: CostModel) -> list[str]:
    """Measured and fitted, a line per load."""
    lines = ["requests  KV tokens  measured ms  fitted ms"]
    for step in steps:
        fitted = cost.latency(step.requests, step.kv_tokens)
        lines.append(f"{step.requests:8}{step.kv_tokens:11.0f}{1000 * step.seconds:13.2f}{1000 * fitted:11.2f}")
    return lines
