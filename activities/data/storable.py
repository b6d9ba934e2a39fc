"""Values of data rows in the form that JSON and PostgreSQL can keep, and what becomes of those that have none.

A file holds more than a run uses. So a value that cannot be kept is no fault by itself: whoever asks for it says, by
the `Refuse` it brings, whether the run ends there or goes on with null in its place.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from ...schemas.text import storable

MAX_TEXT = 2**25
"""Characters of one text: PostgreSQL takes at most 2**28 bytes of it in JSON, and a character may need four."""
MAX_DEPTH = 100
"""Lists and objects inside one another: JSON libraries give up at about a thousand."""
KEPT = (
    "text without NUL and unpaired surrogates, finite numbers, booleans, null, dates and times, and lists and objects "
    "of them"
)
"""What can be kept, for people."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in a row for a value that its file holds and this process cannot read."""

    why: str
    """Goes on after the column's name: `is given twice`."""

    def __repr__(self) -> str:
        return "?"


def given_twice(names: Iterable[str]) -> dict[str, Unreadable]:
    """What stands in a row for the names that its file gives to more than one value."""
    return {name: Unreadable("is given twice") for name, times in Counter(names).items() if times > 1}


Refuse = Callable[[str, Any, str], None]
"""Told the name of what cannot be kept, its value, and why. Raises, or lets null take the value's place."""


def kept(value: Any, name: str, refuse: Refuse, depth: int = 0) -> Any:
    """The value as JSON has it: decimals and moments as text, durations in seconds."""
    if isinstance(value, list | tuple | Mapping) and depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {key: kept(item, f"{name}.{key}", refuse, depth + 1) for key, item in _keys(value, name, refuse)}
        return [kept(item, f"{name}[{number}]", refuse, depth + 1) for number, item in enumerate(value)]
    spelt = _spelt(value)
    if why := _fault(spelt):
        refuse(name, value, why)
        return None
    return spelt


def _spelt(value: Any) -> Any:
    """In a type that JSON has, where there is one for it."""
    match value:
        case Decimal() if value.is_finite():
            return str(value)
        case timedelta():
            return value.total_seconds()
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case bytes():
            return _text(value)
    return value


def _text(value: bytes) -> str | Unreadable:
    """Some writers of Parquet leave out that a column is text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Unreadable("is binary")


def _fault(value: Any) -> str:
    match value:
        case None | bool() | int():
            return ""
        case float():
            return "" if math.isfinite(value) else "is not a finite number"
        case str():
            return fault_of(value)
        case Unreadable():
            return value.why
        case list() | tuple() | Mapping():
            return f"is nested more than {MAX_DEPTH} levels deep"
    return f"is a {type(value).__name__}"


def _keys(value: Mapping[Any, Any], name: str, refuse: Refuse) -> Iterator[tuple[str, Any]]:
    """Where the key cannot be kept and that is no end, it is spelt with escapes."""
    for found, item in value.items():
        key = str(found)
        if why := fault_of(key):
            refuse(name, key, f"has a key that {why}")
        yield kept_key(key), item


def kept_key(key: str) -> str:
    """The same for a key that can be kept."""
    return storable(key, MAX_TEXT) if fault_of(key) else key


def fault_of(text: str) -> str:
    """Why a text cannot be stored; empty for one that can."""
    if len(text) > MAX_TEXT:
        return f"has {len(text)} characters, more than {MAX_TEXT}"
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        # Bytes that are no text were read as these, so that only the column that holds them is at fault.
        if 0xDC80 <= code <= 0xDCFF:
            return f"is not valid UTF-8 (byte 0x{code - 0xDC00:02x} at character {error.start})"
        return f"holds the unpaired surrogate U+{code:04X} at character {error.start}"
    return ""


def meant_as_text(value: Any) -> bool:
    """Text at fault that somebody wrote as text: no bytes that were read as such, and no length beyond all use."""
    return isinstance(value, str) and fault_of(value).startswith("holds ")
