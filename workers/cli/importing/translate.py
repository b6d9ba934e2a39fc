"""From what a file of theirs says to values of ours, with a verdict for each key. Called by `command.py`.

Promise: each key that was read has one line, and none is passed over in silence. A value is written only if its key
takes it; what does not fit is said, and our default stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....schemas.errors import nearest
from . import target
from .given import Given, written
from .implied import implied
from .name import spelling, weight
from .row import Asked, Converted, NotHere, Nothing, Row, Switch, Verdict
from .table import find, known_keys


@dataclass(frozen=True)
class Line:
    """What is said of one key."""

    given: Given
    verdict: Verdict
    said: str = ""
    targets: tuple[str, ...] = ()


@dataclass
class Translation:
    values: dict[str, Any] = field(default_factory=dict)
    """By our keys, dotted."""
    sources: dict[str, Line] = field(default_factory=dict)
    """Of each of these keys, the line it came from."""
    lines: list[Line] = field(default_factory=list)


@dataclass(frozen=True)
class _Offer:
    """A value for one of our keys."""

    target: str
    value: Any
    weight: int
    line: Line


def translate(given: Sequence[Given], ours: Mapping[str, Any]) -> Translation:
    """`ours`: keys of ours, dotted, that win over what the file says."""
    removed, counting = _counting(given)
    known = {spelling(one.key): one.value for one in sorted(counting, key=lambda one: weight(one.key))}
    known |= ours
    left_out = () if _is_ours(counting) else tuple(implied(known))
    known |= {one.key: one.value for one in left_out}
    lines = [*removed]
    offers: list[_Offer] = []
    for one in (*counting, *left_out):
        line, offered = _one(one, known)
        if one.implied and offered and all(offer.value == target.default(offer.target) for offer in offered):
            continue
        lines.append(line)
        offers += offered
    return _settled(lines, offers, ours)


def _is_ours(given: Sequence[Given]) -> bool:
    """All keys are ours, and one of them only ours: what is left out has our defaults, not veRL's."""
    return all(one.key in target.fields() for one in given) and any(find(spelling(one.key)) is None for one in given)


def _counting(given: Sequence[Given]) -> tuple[list[Line], list[Given]]:
    """Of a key that is given several times the last; and what was taken out."""
    removed: list[Line] = []
    counting: dict[str, Given] = {}
    for one in given:
        if one.removes:
            for key in [key for key in counting if key == one.key or key.startswith(f"{one.key}.")]:
                del counting[key]
            removed.append(Line(one, Verdict.NOT_NEEDED, "taken out; the default here counts"))
        else:
            counting.pop(one.key, None)
            counting[one.key] = one
    return removed, list(counting.values())


def _one(given: Given, known: dict[str, Any]) -> tuple[Line, list[_Offer]]:
    row = find(spelling(given.key))
    if row is None:
        return _without_row(given)
    if row.verdict is Verdict.NOT_NEEDED:  # whatever its value
        return Line(given, row.verdict, row.why), []
    if given.hidden:
        return Line(given, Verdict.UNREADABLE, given.hidden), []
    if row.switch is not None:
        if given.value is None or row.switch.is_off({**known, row.key: given.value}):
            return Line(given, Verdict.NOT_NEEDED, _why_off(given, row, row.switch)), []
        return Line(given, row.verdict, row.why), []
    return _with_targets(given, row, known)


def _why_off(given: Given, row: Row, switch: Switch) -> str:
    if given.value is None:
        return "not set"
    if switch.key != row.key:
        return f"it counts only with {switch.key}, which is {'not set to that' if switch.on else 'off'}"
    return row.off_means or ("it is always so here" if given.value else "it is off")


def _without_row(given: Given) -> tuple[Line, list[_Offer]]:
    if given.key in target.fields() and not given.hidden:
        row = Row(given.key, Verdict.TAKEN, "", (given.key,))
        return _with_targets(given, row, {})
    return Line(given, Verdict.UNKNOWN, f"neither veRL's nor PSRL's{nearest(spelling(given.key), known_keys())}"), []


def _with_targets(given: Given, row: Row, known: dict[str, Any]) -> tuple[Line, list[_Offer]]:
    value = given.value
    if value is None and not _takes_null(row):
        return Line(given, Verdict.NOT_NEEDED, "not set"), []
    try:
        converted = _converted(row, Asked(given.key, value, known))
        fitted = [_fitted(key, one) for key, one in zip(row.targets, converted.values, strict=True)]
    except Nothing as fault:
        return Line(given, Verdict.NOT_NEEDED, str(fault)), []
    except (NotHere, ValueError) as fault:
        return Line(given, Verdict.NOT_SUPPORTED, f"{', '.join(row.targets)}: {fault}"), []
    line = Line(given, row.verdict, converted.said, row.targets)
    strength = 0 if row.weak else weight(given.key)
    return line, [_Offer(key, one, strength, line) for key, one in zip(row.targets, fitted, strict=True)]


def _converted(row: Row, asked: Asked) -> Converted:
    if row.convert is None or asked.value is None:
        return Converted((asked.value,) * len(row.targets))
    return row.convert(asked)


def _takes_null(row: Row) -> bool:
    try:
        return all(target.fitting(key, None) is None for key in row.targets)
    except ValueError:
        return False


def _fitted(key: str, value: Any) -> Any:
    """A variable of the environment is known only when a run starts; a text may hold its name until then."""
    texts = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
    if any("${oc.env:" in one for one in texts) and not target.is_text(key):
        raise ValueError(f"{value} is not set in the environment")
    return target.fitting(key, value)


def _settled(lines: list[Line], offers: list[_Offer], ours: Mapping[str, Any]) -> Translation:
    """One value for each of our keys; the others are overruled, or say the same."""
    done = Translation(values={key: _if_it_fits(key, value) for key, value in ours.items()})
    overruled: dict[int, str] = {}
    for key in dict.fromkeys(offer.target for offer in offers):
        rivals = [offer for offer in offers if offer.target == key]
        best = max(rivals, key=lambda offer: offer.weight)
        origin = "was given behind the file" if key in ours else f"comes from {best.line.given.key}"
        if key not in ours:
            done.values[key], done.sources[key] = best.value, best.line
        for offer in rivals:
            if offer.value != done.values[key]:
                overruled[id(offer.line)] = f"{key}={written(done.values[key])} {origin}"
    done.lines = [_overruled(line, overruled.get(id(line))) for line in lines]
    return done


def _if_it_fits(key: str, value: Any) -> Any:
    """Else as it was given: the check of the whole names the fault."""
    try:
        return target.fitting(key, value) if key in target.fields() else value
    except ValueError:
        return value


def _overruled(line: Line, by: str | None) -> Line:
    return line if by is None else Line(line.given, Verdict.CONFLICT, by, line.targets)


def repeated(given: Sequence[Given]) -> Iterator[str]:
    """Keys that the file gives twice with different values: the last counts, which is said."""
    first: dict[str, Given] = {}
    for one in given:
        before = first.get(one.key)
        if before is not None and not one.removes and before.value != one.value:
            counts = f"{written(one.value)} counts, not {written(before.value)}"
            yield f"{one.key} is given on lines {before.line} and {one.line}: {counts}"
        first[one.key] = one
