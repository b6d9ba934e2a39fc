"""Whether two models have the same tensors, said by the first tensor that differs."""

from ...activities.weights.names import Shapes


def difference(found: Shapes, expected: Shapes) -> str | None:
    """`None` when every tensor is there with its shape."""
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            return f"tensor {name!r} is {_shape(found, name)}, expected {_shape(expected, name)}"
    return None


def _shape(shapes: Shapes, name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "missing"
