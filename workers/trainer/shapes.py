"""Whether two models have the same tensors, said by the first tensor that differs."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ...schemas.config import RunConfig
from ...schemas.errors import ModelError

Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def configured_shapes(config: RunConfig) -> Shapes:
    """Of the model that `model.path` describes; no weights are read or made."""
    folder, trust = Path(config.model.path), config.model.trust_remote_code
    try:
        described = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(described, trust_remote_code=trust)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path={str(folder)!r} cannot be read as a causal LM: {error}") from error
    return shapes_of(model.state_dict())


def difference(found: Shapes, expected: Shapes) -> str | None:
    """`None` when every tensor is there with its shape."""
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            return f"tensor {name!r} is {_shape(found, name)}, expected {_shape(expected, name)}"
    return None


def _shape(shapes: Shapes, name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "missing"
