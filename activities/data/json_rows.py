"""Rows of JSON files: one object per line, or one document with a list of objects."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from ...schemas.errors import DataError
from .compressed import bare_suffix, read_lines
from .storable import Unreadable, given_twice

SPACE = re.compile(r"[ \t\n\r]*")
"""JSON's own."""
ROW_KEYS = {"prompt", "messages", "conversations", "conversation"}
"""An object with one of them is a row, whatever lists it has."""
Found = tuple[str, dict[str, Any]]
"""Location and values."""


def read_json(file: Path) -> Iterator[Found]:
    """Lines are read one at a time; only a document, known by its first line, is held in memory whole."""
    lines = read_lines(file)
    before = list(_up_to_text(lines))
    if not before:
        return
    line, after = before[-1], list(_up_to_text(lines))
    # A single object is a row where rows are lines, and may be a document that holds them elsewhere.
    alone = bare_suffix(file) == ".json" and not any(map(str.strip, after))
    if alone or not _is_object(line):
        yield from _document(file, "".join([*before, *after, *lines]))
    else:
        yield from _by_line(file, chain([line], after, lines), len(before))


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """Blank lines, and the first that is not blank."""
    for line in lines:
        yield line
        if line.strip():
            return


def _is_object(line: str) -> bool:
    """By itself; what else begins with a brace or a bracket goes on in the next line."""
    if line.lstrip()[:1] not in ("{", "["):
        return True  # no JSON at all, and the line says so best
    try:
        return isinstance(loads(line), dict)
    except (json.JSONDecodeError, RecursionError):
        return False


def _by_line(file: Path, lines: Iterator[str], first: int) -> Iterator[Found]:
    for number, line in enumerate(lines, start=first):
        if line.strip():
            location = f"{file}:{number}"
            yield location, _row(location, _parse(location, line.rstrip("\r\n")))


def _document(file: Path, text: str) -> Iterator[Found]:
    """A list of rows, an object that has one, or rows one after another that go over several lines each."""
    found = _values(file, text)
    rows = _table(file, found[0][1], text) if len(found) == 1 else None
    for number, values in enumerate(rows or (), start=1):
        location = f"{file}: row {number}"
        yield location, _row(location, values)
    for line, values in found if rows is None else ():
        location = f"{file}:{line}"
        yield location, _row(location, values)


def _table(file: Path, document: Any, text: str) -> list[Any] | None:
    """The rows in a document; null where it is a row itself."""
    if not isinstance(document, dict):
        return document if isinstance(document, list) else None
    lists = [value for value in document.values() if isinstance(value, list) and value and all(map(_may_be_row, value))]
    if len(lists) == 1 and not ROW_KEYS & document.keys():
        return lists[0]
    if "\n" not in text.strip():
        return None
    raise DataError(
        f"{file}: one JSON object with the keys {', '.join(document) or '(none)'}; allowed: a list of rows, an object "
        "with one list of rows, or one row per line"
    )


def _may_be_row(value: Any) -> bool:
    """Messages are none."""
    return isinstance(value, dict) and not {"role", "from"} & value.keys()


def _values(file: Path, text: str) -> list[tuple[int, Any]]:
    """Each with the number of its line. Several objects may stand one after another, nothing after a list."""
    found: list[tuple[int, Any]] = []
    at = line = 0
    while (start := _after_space(text, at)) < len(text):
        line += text.count("\n", at, start) + (not found)
        with _located(str(file), whole=True):
            if found and not isinstance(found[-1][1], dict):
                raise json.JSONDecodeError("Extra data", text, start)
            value, at = _decoded(text, start)
        found.append((line, value))
        line += text.count("\n", start, at)
    return found


def _after_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return found.end() if found else at


def _row(location: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise DataError(f"{location}: a row must be a JSON object, not {type(values).__name__}")
    return values


def _parse(location: str, text: str) -> Any:
    with _located(location):
        return loads(text)


@contextmanager
def _located(location: str, whole: bool = False) -> Iterator[None]:
    """What is no JSON, by its place. `whole`: of the file, not only of one line of it."""
    try:
        yield
    except json.JSONDecodeError as error:
        line = f"line {error.lineno} " if error.lineno > 1 else ""
        location = f"{location}:1" if whole and not line else location
        raise DataError(f"{location}: not valid JSON: {error.msg} at {line}column {error.colno}") from error
    except RecursionError as error:
        raise DataError(f"{location}: nested too deeply") from error


def loads(text: str) -> Any:
    """JSON; a key that is given twice and an integer without measure become `Unreadable`."""
    start = _after_space(text, 0)
    value, end = _decoded(text, start)
    if (end := _after_space(text, end)) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """A value, and where it ends."""
    try:
        return JSON.raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer that Python converts only on request; looked for only then, as it costs time
        return LARGE.raw_decode(text, start)


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


JSON = json.JSONDecoder(object_pairs_hook=_object)
LARGE = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)
