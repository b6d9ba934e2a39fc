"""`psrl config import`: one file of theirs becomes one of ours, and a line is said about each key."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....schemas.config import merge, parse_config
from ....schemas.errors import ConfigError
from .fit import fit
from .given import leaves, nested, value_at, written
from .name import clusters
from .reading import read
from .row import Verdict
from .table import known_keys
from .target import fields
from .translate import Line, Translation, repeated, translate
from .write import as_yaml, shown

MAX_NAMED = 5
PLACED = (Verdict.CONFLICT, Verdict.UNKNOWN, Verdict.UNREADABLE)
"""What has to be looked up in the file."""


@dataclass(frozen=True)
class Imported:
    text: str
    """Our YAML."""
    told: tuple[str, ...]
    """One line per key of theirs, then what else a person should know."""
    faults: tuple[str, ...]
    """Why `psrl train` would refuse it as it is."""


def import_config(file: Path, text: str, overrides: Sequence[str], environment: Mapping[str, str]) -> Imported:
    """`overrides` are ours, and win. Raises `ConfigError` for a file that cannot be read at all."""
    source = read(file, text, environment)
    if not any(one.key.partition(".")[0] in _sections() for one in source.given):
        raise ConfigError(
            f"{file} has no key of veRL's or PSRL's, only {', '.join(one.key for one in source.given[:MAX_NAMED])}; "
            "allowed: their YAML, key=value, or a command line"
        )
    translation = translate(source.given, dict(leaves(merge(None, overrides))))
    added = fit(translation)
    told = (
        *(_line(line, translation) for line in _in_order(translation.lines)),
        *(f"{'added':18}{one}" for one in added),
        *(f"note: {note}" for note in (*source.notes, *repeated(source.given), *_left_to_the_environment(translation))),
        _summary(translation.lines),
    )
    return Imported(as_yaml(translation, file.name), told, _faults(translation))


def _sections() -> set[str]:
    """What a key of theirs or of ours begins with."""
    return {spelled.partition(".")[0] for key in (*known_keys(), *fields()) for spelled in (key, *clusters(key))}


def _in_order(lines: Sequence[Line]) -> list[Line]:
    """What a person has to look at comes last, where the eye is."""
    order = list(Verdict)
    return sorted(lines, key=lambda line: order.index(line.verdict))


def _line(line: Line, translation: Translation) -> str:
    given = line.given
    places = {"veRL's default": given.implied, f"line {given.line}": given.line and line.verdict in PLACED}
    where = "".join(f" ({place})" for place, told in places.items() if told)
    becomes = ""
    if line.verdict is Verdict.RENAMED:
        values = nested(translation.values)
        becomes = " -> " + ", ".join(f"{key}={written(value_at(values, key))}" for key in line.targets)
    return f"{line.verdict:18}{shown(given)}{where}{becomes}{': ' if line.said else ''}{line.said}"


def _left_to_the_environment(translation: Translation) -> Iterator[str]:
    for key, value in translation.values.items():
        for name in re.findall(r"\$\{oc\.env:(\w+)", str(value)):
            yield f"{key} has the environment variable {name}, which is not set; `psrl train` will ask for it"


def _summary(lines: Sequence[Line]) -> str:
    counted = Counter(line.verdict for line in lines if not line.given.implied)
    parts = ", ".join(f"{counted[verdict]} {verdict}" for verdict in Verdict if counted[verdict])
    return f"{sum(counted.values())} keys: {parts}"


def _faults(translation: Translation) -> tuple[str, ...]:
    try:
        parse_config(nested(translation.values))
    except ConfigError as error:
        return tuple(_with_advice(fault) for fault in str(error).splitlines())
    return ()


def _with_advice(fault: str) -> str:
    if fault.startswith("reward.function is required"):
        return f"{fault}: veRL chose a scorer by the data source; name yours, reward.function=package.module:function"
    return fault
