"""Failures of an engine that no repetition heals, told apart from those of a busy machine.

Only the text of an exception leaves the engine's process, so there the kind is put into words that are known here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

CANNOT_HEAL = (ValueError, TypeError, LookupError, AttributeError, ImportError, NotImplementedError, AssertionError)
"""What code raises that meets a model it was not made for."""
CANNOT_TAKE = "the engine cannot take these weights"


@contextmanager
def told_apart() -> Iterator[None]:
    """In the engine's process, around the taking of weights."""
    try:
        yield
    except CANNOT_HEAL as error:
        raise RuntimeError(f"{CANNOT_TAKE}: {type(error).__name__}: {error}") from error
