"""Bringing a published version into a living engine, and the proof that the engine computes with it. Used by `Host`.

Promise: when `load` returns, the engine runs, and its log-probs of the version's probe are the trainer's within the
tolerance. However else it ends, what is in the engine must not be served.
"""

import asyncio
import math
from collections.abc import Sequence

from ...activities.weights.transport import Lease
from ...schemas.errors import WeightsRefused
from ...schemas.ids import Version
from .engine import Engine

LOAD_TIMEOUT_S = 900.0


async def load(engine: Engine, lease: Lease, version: Version, tolerance: float) -> float:
    """The largest difference of a log-prob. No request may be left in the engine. Raises `WeightsRefused`,
    `EngineUnavailable`, and `TimeoutError` when the engine does not answer."""
    probe = lease.manifest.probe
    async with asyncio.timeout(LOAD_TIMEOUT_S):
        await engine.pause(interrupt=True)
        await engine.load(lease.tensors, version)
        await engine.resume()
        found = await engine.probe(probe.token_ids)
    difference = largest_difference(found, probe.logprobs)
    if not difference <= tolerance:  # so that NaN is refused
        raise WeightsRefused(
            f"version {version} is loaded, but its log-probs differ from the trainer's by {difference:.3g}; allowed is "
            f"rollout.weight_probe_tolerance={tolerance}"
        )
    return difference


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """NaN when any value is, which `max` would pass over."""
    differences = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)
