"""What a reward function returned, read as a number and its metrics for each trajectory.

Promises: NaN and infinity are refused by name; what is no number beside `score` (the answer that was parsed, say) is
left out; a number that the run's filter needs is missed at once; of a list that is not one value per sample, nothing is
taken.
"""

import math
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

from ...schemas.errors import UserCodeFailed
from ...schemas.text import shown, storable

SCORE = "score"
MAX_METRICS = 100
MAX_NAME = 100
"""Characters."""


class Reading(NamedTuple):
    reward: float
    metrics: dict[str, float]


def readings(returned: object, samples: int, needed: str | None = None) -> list[Reading]:
    """One per sample. Raises `UserCodeFailed`. An iterator is refused: one that never ends would be read for ever."""
    allowed = f"allowed: a list with one number or dict for each of {samples} samples"
    if isinstance(returned, str | bytes | Mapping | Set | Iterator) or not hasattr(returned, "__iter__"):
        raise UserCodeFailed(f"returned {_a(returned)}; {allowed}")
    try:
        values = list(returned)
    except TypeError:  # an array of no dimension
        raise UserCodeFailed(f"returned {_a(returned)}; {allowed}") from None
    if len(values) != samples:
        raise UserCodeFailed(f"returned {len(values)} values for {samples} samples; {allowed}")
    return [reading(value, needed) for value in values]


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
        raise UserCodeFailed(f"returned {_a(value)}; allowed: one finite number, or a dict that has {SCORE!r}")
    if not math.isfinite(found):
        raise UserCodeFailed(f"returned {shown(value)}; allowed: one finite number")
    return found


def _metrics(value: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    for name, item in value.items():
        found = None if name == SCORE else _number(item)
        if found is None:
            continue
        if not isinstance(name, str) or not name or (stored := storable(name, MAX_NAME)) != name:
            raise UserCodeFailed(
                f"returned the metric {shown(name)}; allowed: names that are text of 1 to {MAX_NAME} characters"
            )
        if not math.isfinite(found):
            raise UserCodeFailed(f"returned {name}={shown(item)}; allowed: finite numbers")
        yield stored, found


def _number(value: object) -> float | None:
    """None for what is no number. Booleans are; numbers of other libraries are, alone in an array or a tensor too."""
    if isinstance(value, Iterator | str | bytes):
        return None
    try:
        # Alone in an array or a tensor; without a dimension `float` does it, and tells a masked value from 0.
        if getattr(value, "shape", ()) and callable(item := getattr(value, "item", None)):
            value = item()
        return float(value) if hasattr(value, "__float__") or hasattr(value, "__index__") else None  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of several
        return None


def _a(value: object) -> str:
    """A generator by its kind, since its text says nothing that a person knows it by."""
    return f"a {type(value).__name__}" if isinstance(value, Iterator) else shown(value)
