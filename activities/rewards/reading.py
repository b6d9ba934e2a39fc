"""What a reward function returned for one trajectory, read as a number and its metrics.

Promises: NaN and infinity are refused by name; what is no number beside `score` (the answer that was parsed, say) is
left out; a number that the run's filter needs is missed at once.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ...schemas.errors import UserCodeFailed
from ...schemas.text import storable
from ..user_code.attempts import shown

SCORE = "score"
MAX_METRICS = 100
MAX_NAME = 100
"""Characters."""


class Reading(NamedTuple):
    reward: float
    metrics: dict[str, float]


def reading(value: object, needed: str | None = None) -> Reading:
    """Raises `UserCodeFailed`. `needed` is the metric that must be among those returned."""
    if isinstance(value, Mapping):
        if SCORE not in value:
            raise UserCodeFailed(f"returned {shown(dict(value))}; allowed: one number, or a dict that has {SCORE!r}")
        found = Reading(number(value[SCORE]), dict(_metrics(value)))
    else:
        found = Reading(number(value), {})
    if len(found.metrics) > MAX_METRICS:
        raise UserCodeFailed(f"returned {len(found.metrics)} metrics; allowed: at most {MAX_METRICS}")
    if needed is not None and needed not in found.metrics:
        there = ", ".join([SCORE, *found.metrics])
        raise UserCodeFailed(f"returned no number {needed!r}, which algorithm.filter_groups.metric needs, only {there}")
    return found


def number(value: object) -> float:
    """The value as a finite number. Raises `UserCodeFailed` for anything else, text included."""
    found = _number(value)
    if found is None:
        raise UserCodeFailed(f"returned {shown(value)}; allowed: one finite number, or a dict that has {SCORE!r}")
    if not math.isfinite(found):
        raise UserCodeFailed(f"returned {shown(value)}; allowed: one finite number")
    return found


def _metrics(value: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    for name, item in value.items():
        found = None if name == SCORE else _number(item)
        if found is None:
            continue
        if not isinstance(name, str) or storable(name, MAX_NAME) != name:
            raise UserCodeFailed(f"returned the metric {shown(name)}; allowed: names of at most {MAX_NAME} characters")
        if not math.isfinite(found):
            raise UserCodeFailed(f"returned {name}={shown(item)}; allowed: finite numbers")
        yield name, found


def _number(value: object) -> float | None:
    """None for what is no number. Booleans are; numbers of other libraries are."""
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several
        return None
