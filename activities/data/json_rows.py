"""Rows of JSON files: one object per line, or one document with a list of objects."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from ...schemas.errors import DataError
from .compressed import read_lines
from .storable import Unreadable, given_twice

Found = tuple[str, dict[str, Any]]
"""Location and values."""


def read_json(file: Path) -> Iterator[Found]:
    """Lines are read one at a time; only a document, known by its first line, is held in memory whole."""
    lines = read_lines(file)
    blank = 0
    for line in lines:
        if not line.strip():
            blank += 1
        elif _begins_document(line):
            yield from _document(file, "\n" * blank + line + "".join(lines))
        else:
            yield from _by_line(file, chain([line], lines), blank + 1)


def _begins_document(line: str) -> bool:
    """A list, or an object that goes on in the next line."""
    return line.lstrip().startswith("[") or line.strip() == "{"


def _by_line(file: Path, lines: Iterator[str], first: int) -> Iterator[Found]:
    for number, line in enumerate(lines, start=first):
        if line.strip():
            location = f"{file}:{number}"
            yield location, _row(location, _parse(location, line.rstrip("\r\n")))


def _document(file: Path, text: str) -> Iterator[Found]:
    found = _parse(str(file), text)
    if isinstance(found, dict):
        lists = [name for name, value in found.items() if isinstance(value, list)]
        if len(lists) != 1:
            raise DataError(
                f"{file}: one JSON object with the keys {', '.join(found) or '(none)'}; allowed: a list of rows, an "
                "object with one list of rows, or one row per line"
            )
        found = found[lists[0]]
    for number, values in enumerate(found, start=1):
        location = f"{file}: row {number}"
        yield location, _row(location, values)


def _row(location: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise DataError(f"{location}: a row must be a JSON object, not {type(values).__name__}")
    return values


def _parse(location: str, text: str) -> Any:
    try:
        return loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        raise DataError(f"{location}: not valid JSON: {error.msg} at {line}column {error.colno}") from error
    except RecursionError as error:
        raise DataError(f"{location}: nested too deeply") from error


def loads(text: str) -> Any:
    """JSON; a key that is given twice and an integer without measure become `Unreadable`."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer that Python converts only on request; looked for only then, as it costs time
        return json.loads(text, object_pairs_hook=_object, parse_int=_integer)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        values |= given_twice(name for name, _ in pairs)
    return values


def _integer(digits: str) -> int | Unreadable:
    try:
        return int(digits)
    except ValueError:
        return Unreadable(f"is an integer of {len(digits)} digits")
