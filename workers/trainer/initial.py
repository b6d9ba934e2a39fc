"""The model of version 0, as a run's start and its KL term's reference load it: it must be what the run began with."""

import contextlib
import logging
import math
from pathlib import Path
from typing import Any

import torch

from ...activities.weights.names import by_file_name, shapes_of
from ...schemas.config import RunConfig
from ...schemas.errors import ModelError, WeightsRefused, one_line
from ...schemas.weights import WeightProbe
from .agreement import SAME_MODEL_TOLERANCE, probe_gap
from .backend import BackendRun
from .probe import weight_probe
from .shapes import difference
from .state import load_model

log = logging.getLogger(__name__)

SHOWN = 5
CANNOT_COMPUTE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
"""What a forward pass raises whose parts do not fit together."""


def initial_model(run: BackendRun, tokenizer: Any, device: torch.device) -> Any:
    """Raises `ModelError` when `model.path` no longer holds what was published as version 0."""
    model, ignored = load_model(Path(run.config.model.path), run.config, device)
    published = run.published.probe(0)
    if ignored and published is None:  # Said when the run begins, not whenever the model is loaded again.
        log.warning("run %s: %s", run.run_id, _said_of(ignored, run.config.model.path))
    gap = probe_gap(published, _first_probe(model, tokenizer, run.config))
    if gap is not None and gap > SAME_MODEL_TOLERANCE:
        differs = _difference(run, model)
        raise ModelError(
            f"model.path={run.config.model.path!r} is not the model that run {run.run_id!r} began with: "
            f"{differs or f'log-probs of its probe differ by up to {gap:.3g}'}. Put the original back"
        )
    return model


def _first_probe(model: Any, tokenizer: Any, config: RunConfig) -> WeightProbe:
    """Raises `ModelError` for a model that computes nothing, which no repetition changes."""
    try:
        probe = weight_probe(model, tokenizer, config)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # of a device that may be free again
        raise
    except CANNOT_COMPUTE as error:
        raise ModelError(
            f"model.path={config.model.path!r} cannot be computed with: {type(error).__name__}: {one_line(error)}"
        ) from error
    if not all(map(math.isfinite, probe.logprobs)):
        raise ModelError(
            f"model.path={config.model.path!r} computes no numbers: its log-probs are {probe.logprobs[0]:g}; allowed: "
            "weights that are finite"
        )
    return probe


def _difference(run: BackendRun, model: Any) -> str | None:
    """In shapes, from version 0 where it can still be read."""
    with contextlib.suppress(WeightsRefused), run.published.lease(0) as published:
        return difference(shapes_of(by_file_name(model, model.state_dict())), shapes_of(published.tensors))
    return None


def _said_of(ignored: tuple[str, ...], path: str) -> str:
    more = f" and {len(ignored) - SHOWN} more" if len(ignored) > SHOWN else ""
    return f"ignored in model.path={path}, because the model has no such tensor: {', '.join(ignored[:SHOWN])}{more}"
