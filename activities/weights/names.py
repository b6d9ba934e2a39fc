"""The names and shapes of a version's tensors: those that the model's own `save_pretrained` writes.

The files of a model may name its tensors otherwise (older releases, experts that transformers fuses), hold tensors that
the model does not have, or a tied one twice. Here names follow from the configuration alone: the trainer publishes by
them and an engine expects them, each without asking the other. Also what a checkpoint is written by.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...schemas.config import ModelSection
from .described import described_model

if TYPE_CHECKING:
    import torch

Shapes = dict[str, tuple[int, ...]]


class Described(NamedTuple):
    """What a folder's configuration says of its model."""

    architecture: str | None
    """The library's class, whatever the configuration calls it; null for a class of the folder's own."""
    shapes: Shapes
    """Of the tensors of every version of a run."""


def by_file_name(model: Any, tensors: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """`model.state_dict()`, or a copy of it, as `save_pretrained` names and cuts it; a tied tensor is there once. The
    results may be views of what is given."""
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    unsaved = set(model._keys_to_ignore_on_save or ())
    kept = {name: tensor for name, tensor in tensors.items() if name not in unsaved}
    named: dict[str, torch.Tensor] = revert_weight_conversion(model, remove_tied_weights_from_state_dict(kept, model))
    return named


def named_by_configuration(model: Any) -> Any:
    """The same model, which would else be saved by the names of the files that it was loaded from."""
    model._weight_conversions = None
    return model


def shapes_of(tensors: "Mapping[str, torch.Tensor]") -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def describe(section: ModelSection) -> Described:
    """Reads no weights. Raises `ModelError`."""
    model = described_model(section)
    name = type(model).__name__ if type(model).__module__.startswith("transformers.models.") else None
    return Described(name, shapes_of(by_file_name(model, model.state_dict())))
