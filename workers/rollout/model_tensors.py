"""Whether a version holds the tensors that the model needs, checked before an engine is touched. vLLM itself keeps the
old values of a tensor that an update leaves out, without an error."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...activities.weights.names import Shapes, shapes_of
from ...schemas.errors import EngineUnfit
from ...schemas.ids import Version

if TYPE_CHECKING:
    import torch

SHOWN = 5


def require_same(expected: Shapes, tensors: "Mapping[str, torch.Tensor]", version: Version) -> None:
    """Raises `EngineUnfit` naming what is missing, unknown or of another shape."""
    found = shapes_of(tensors)
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
    raise EngineUnfit(f"version {version} does not fit the model: {'; '.join(faults)}")
