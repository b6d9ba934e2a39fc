"""Whether two copies of a version are the same model, told by their probes."""

from ...schemas.weights import WeightProbe

SAME_MODEL_TOLERANCE = 1e-3
"""Largest |log-prob difference| on the probe between `model.path` now and when version 0 was published: above what
another processor may cause, below any other model."""


def probe_gap(published: WeightProbe | None, found: WeightProbe) -> float | None:
    """Largest |log-prob difference|; None when there is nothing to compare with."""
    if published is None:
        return None
    if published.token_ids != found.token_ids:
        return float("inf")
    return max((abs(a - b) for a, b in zip(published.logprobs, found.logprobs, strict=True)), default=0.0)
