"""Fencing numbers of sessions. Each attempt at an episode has a range of its own, above those of the earlier ones. So a
late result of a session that was given up is refused on every branch of the next one, whether that had calls or not.
"""

from typing import Any

from sqlalchemy import ColumnElement

from ..generation.turns import ATTEMPTS_PER_CALL

CALLS_PER_SESSION = 1_000_000
"""More than any makes on one branch."""
RANGE = CALLS_PER_SESSION * ATTEMPTS_PER_CALL
"""Every branch begins with the first number of its session's range."""


def above(fence: Any) -> ColumnElement[int]:
    """The first of the next range: it refuses every call so far, also one that has claimed nothing yet."""
    first: ColumnElement[int] = (fence // RANGE + 1) * RANGE
    return first


def first_call(fence: int) -> int:
    """The number of a branch's first call, where the branch begins with this fence."""
    return fence // ATTEMPTS_PER_CALL + 1
