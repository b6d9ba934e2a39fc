"""Names and shapes of the tensors in a model directory: what a published version must hold, checked before an engine
is touched. vLLM itself keeps the old values of a tensor that an update leaves out, without an error."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from ...schemas.errors import ModelError, WeightsRefused
from ...schemas.ids import Version

if TYPE_CHECKING:
    import torch

Shapes = dict[str, tuple[int, ...]]
SHOWN = 5
TIED_HEAD = "lm_head.weight"
"""Some checkpoints carry the head of a tied model too."""


def model_shapes(folder: Path) -> Shapes:
    """Raises `ModelError` when there are no safetensors."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"model.path {folder}: no *.safetensors file in it")
    shapes: Shapes = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings"):
        shapes.pop(TIED_HEAD, None)
    return shapes


def require_same(expected: Shapes, tensors: "Mapping[str, torch.Tensor]", version: Version) -> None:
    """Raises `WeightsRefused` naming what is missing, unknown or of another shape."""
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name in expected or name != TIED_HEAD}
    if found == expected:
        return
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    reshaped = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in sorted(expected.items())
        if name in found and found[name] != shape
    ]
    faults = [
        f"{title}: {', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
        for title, names in (("missing", missing), ("unknown", unknown), ("wrong shape", reshaped))
        if names
    ]
    raise WeightsRefused(f"version {version} does not fit the model: {'; '.join(faults)}")
