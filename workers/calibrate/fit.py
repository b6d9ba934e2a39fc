"""Fits the cost model to measured steps. Pure.

A step takes `c + k * t + s * max(0, n - n0)`: constant until n0 requests are at work, then longer with each. For every
n0 among the measured loads the other three follow by least squares of the relative error, none of them negative; the n0
with the smallest error is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.cost_model import CostModel
from ...schemas.errors import UserError
from .measured import StepTime

FEWEST = 4
"""Loads, for as many coefficients."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    cost: CostModel
    mean_error: float
    """Of |fitted / measured - 1|."""
    worst_error: float


def fit(steps: Sequence[StepTime]) -> Fit:
    """Raises `UserError` when too little was measured."""
    if len(steps) < FEWEST:
        raise UserError(
            f"only {len(steps)} loads could be measured, {FEWEST} are needed: allow more requests "
            "(psrl.rollout_coordination.routing_strategy.max_concurrent_seqs_per_instance) or more KV cache "
            "(rollout.kv_cache_gb)"
        )
    n = np.array([step.requests for step in steps], dtype=float)
    t = np.array([step.kv_tokens for step in steps], dtype=float)
    seconds = np.array([step.seconds for step in steps], dtype=float)
    kinks = sorted({0.0, *n[:-1]})
    tried = [(kink, _least_squares(n, t, seconds, kink)) for kink in kinks]
    kink, (constant, per_token, per_request) = min(tried, key=lambda one: _error(n, t, seconds, *one))
    cost = CostModel(
        other_threshold=constant,
        other_latency_b=constant - per_request * kink,
        other_latency_k=per_request,
        attn_latency_b=0.0,
        attn_latency_k=per_token,
    )
    errors = [abs(cost.latency(step.requests, step.kv_tokens) / step.seconds - 1) for step in steps]
    return Fit(cost, sum(errors) / len(errors), max(errors))


def _columns(n: Vector, t: Vector, kink: float) -> Vector:
    return np.stack([np.ones_like(n), t, np.maximum(0.0, n - kink)], axis=1)


def _least_squares(n: Vector, t: Vector, seconds: Vector, kink: float) -> tuple[float, float, float]:
    """The best of all solutions in which some coefficients are zero and none is negative; the constant is neither."""
    columns = _columns(n, t, kink) / seconds[:, None]
    best, least = np.zeros(3), np.inf
    for others in ((1, 2), (1,), (2,), ()):
        chosen = [0, *others]
        values = np.zeros(3)
        values[chosen] = np.linalg.lstsq(columns[:, chosen], np.ones_like(n), rcond=None)[0]
        rest = float(np.sum((columns @ values - 1) ** 2))
        if values[0] > 0 and (values >= 0).all() and rest < least:
            best, least = values, rest
    return float(best[0]), float(best[1]), float(best[2])


def _error(n: Vector, t: Vector, seconds: Vector, kink: float, values: tuple[float, float, float]) -> float:
    return float(np.sum(((_columns(n, t, kink) @ np.array(values)) / seconds - 1) ** 2))
