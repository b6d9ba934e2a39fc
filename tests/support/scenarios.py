"""Small scenarios for tests of the simulator."""

from collections.abc import Mapping
from typing import Any

from psrl.schemas.config.load import parsed
from psrl.workers.simulate.scenario import Scenario

CONSTANT = {"kind": "uniform", "shortest": 100, "longest": 100}
FLAT = {
    "other_threshold": 0.0,
    "other_latency_b": 0.01,
    "other_latency_k": 0.0,
    "attn_latency_b": 0.0,
    "attn_latency_k": 0.0,
    "prefill_s_per_token": 0.0,
}
"""100 tokens a second for each sequence, whatever else runs."""


def scenario(psrl: Mapping[str, Any] | None = None, **simulate: Any) -> Scenario:
    """By default one instance, batches of 4, answers of 1 s, training of 0.25 s, syncs that take no time."""
    costs = {"lengths": CONSTANT, "engine": FLAT, "train_s": 0.25, "sync_s": 0.0, "steps": 20} | simulate
    return parsed(Scenario, {"psrl": {"staleness_buffer_entries": 4} | dict(psrl or {}), "simulate": costs})


def coordination(slots: int = 64, **sections: Any) -> dict[str, Any]:
    """`psrl.rollout_coordination`."""
    routing = {"max_concurrent_seqs_per_instance": slots} | sections.pop("routing", {})
    return {"rollout_coordination": {"routing_strategy": routing} | sections}
