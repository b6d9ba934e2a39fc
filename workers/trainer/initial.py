"""The model of version 0, as a run's start and its KL term's reference load it: it must be what the run began with."""

import contextlib
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ModelError, WeightsRefused
from .agreement import SAME_MODEL_TOLERANCE, probe_gap
from .backend import BackendRun
from .probe import weight_probe
from .shapes import difference, shapes_of
from .state import load_model


def initial_model(run: BackendRun, tokenizer: Any, device: torch.device) -> Any:
    """Raises `ModelError` when `model.path` no longer holds what was published as version 0."""
    model = load_model(Path(run.config.model.path), run.config, device)
    gap = probe_gap(run.published.probe(0), weight_probe(model, tokenizer, run.config))
    if gap is not None and gap > SAME_MODEL_TOLERANCE:
        differs = _difference(run, model)
        raise ModelError(
            f"model.path={run.config.model.path!r} is not the model that run {run.run_id!r} began with: "
            f"{differs or f'log-probs of its probe differ by up to {gap:.3g}'}. Put the original back"
        )
    return model


def _difference(run: BackendRun, model: Any) -> str | None:
    """In shapes, from version 0 where it can still be read; a tied tensor is published once."""
    with contextlib.suppress(WeightsRefused), run.published.lease(0) as published:
        found = {name: shape for name, shape in shapes_of(model.state_dict()).items() if name in published.tensors}
        return difference(found, shapes_of(published.tensors))
    return None
