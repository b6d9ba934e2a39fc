"""One row of the table: what becomes of one key of veRL's or PSRL's. Rows are written by the functions below.

Keys are as veRL spells them; `name.py` maps PSRL's two clusters to that. A `*` stands for any text: such a row is for
keys that have none of their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What is said of a key that was read."""

    TAKEN = "taken over"
    """The same key with the same meaning."""
    RENAMED = "renamed"
    """Another key of ours, where necessary with a converted value."""
    NOT_NEEDED = "not needed here"
    """The result is the same without it; the reason follows."""
    CONFLICT = "overruled"
    """Another key says something else about the same thing, and counts."""
    NOT_SUPPORTED = "not supported yet"
    """The run will differ in this."""
    UNKNOWN = "unknown"
    """Neither veRL's, nor PSRL's, nor ours; the nearest key is named."""
    UNREADABLE = "not readable"
    """Its value is known only where the script runs."""


@dataclass(frozen=True)
class Asked:
    """A key that a converter has to translate."""

    key: str
    value: Any
    others: Mapping[str, Any]
    """Every key of the same file with its value, in the spelling of the table."""


@dataclass(frozen=True)
class Converted:
    values: tuple[Any, ...]
    """One for each target of the row."""
    said: str = ""


class NotHere(Exception):
    """This value of a key that has a place here has none itself; says why."""


class Nothing(Exception):
    """This value leaves our default as it is; says why."""


Converter = Callable[[Asked], Converted]


@dataclass(frozen=True)
class Switch:
    """Decides whether a row that is not supported asks for anything at all: it does not while `key` is not set, or has
    one of the values `off` (a list: only such values), or, where `on` is given, none of those."""

    key: str
    off: tuple[Any, ...] = ()
    on: tuple[Any, ...] = ()

    def is_off(self, values: Mapping[str, Any]) -> bool:
        value = values.get(self.key)
        if value is None or value in ({}, [], "", "null"):
            return True
        if self.on:
            return value not in self.on
        return all(one in self.off for one in (value if isinstance(value, list) else [value]))


@dataclass(frozen=True)
class Row:
    key: str
    verdict: Verdict
    why: str = ""
    """For a key that is taken over or renamed: what becomes of its value, where that is not plain."""
    targets: tuple[str, ...] = ()
    convert: Converter | None = None
    switch: Switch | None = None
    off_means: str = ""
    """Why a value that the switch has for off asks for nothing, where that is not plain."""
    weak: bool = False
    """Where another key says something else about the same thing, that one counts."""


def same(key: str, why: str = "", convert: Converter | None = None) -> Row:
    return Row(key, Verdict.TAKEN, why, (key,), convert)


def renamed(key: str, *targets: str, why: str = "", convert: Converter | None = None, weak: bool = False) -> Row:
    return Row(key, Verdict.RENAMED, why, targets, convert, weak=weak)


def not_needed(why: str, *keys: str) -> tuple[Row, ...]:
    return tuple(Row(key, Verdict.NOT_NEEDED, why) for key in keys)


def not_supported(key: str, what: str, *off: Any, off_means: str = "") -> Row:
    """`off`: values that ask for nothing, beside null."""
    return Row(key, Verdict.NOT_SUPPORTED, what, switch=Switch(key, off), off_means=off_means)


def part(switch: Switch, what: str, *keys: str) -> tuple[Row, ...]:
    """Keys that count only with another one."""
    return tuple(Row(key, Verdict.NOT_SUPPORTED, what, switch=switch) for key in keys)
