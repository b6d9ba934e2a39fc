"""Our YAML, with where each value came from beside it. Called by `command.py`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .given import Given, nested, written
from .row import Verdict
from .target import fields
from .translate import Line, Translation

HEADER = "# Made by `psrl config import {file}`. Every key is explained in docs/configuration.md."
OPEN = (Verdict.NOT_SUPPORTED, Verdict.UNREADABLE, Verdict.UNKNOWN)
"""What a run from this file would not do as theirs did."""


def as_yaml(translation: Translation, file: str) -> str:
    in_order = {key: translation.values[key] for key in fields() if key in translation.values}
    whole = nested(in_order | translation.values)  # a key that is none of ours is for the check to name
    lines = [HEADER.format(file=file), *_missing(translation.lines), *_section(whole, "", translation)]
    return "\n".join(lines) + "\n"


def _missing(lines: Sequence[Line]) -> Iterator[str]:
    found = [line for line in lines if line.verdict in OPEN]
    if found:
        yield "# Not translated:"
    for line in found:
        yield f"#   {shown(line.given)}: {line.verdict}, {line.said}"


def _section(values: Mapping[str, Any], above: str, translation: Translation) -> Iterator[str]:
    indent = "  " * above.count(".")
    for name, value in values.items():
        key = f"{above}{name}"
        if isinstance(value, dict):
            yield f"{indent}{name}:"
            yield from _section(value, f"{key}.", translation)
        else:
            yield f"{indent}{name}: {written(value)}{_origin(key, translation.sources.get(key))}"


def _origin(key: str, line: Line | None) -> str:
    if line is None or line.given.key == key:
        return ""
    return f"  # {line.given.key}" + (", veRL's default" if line.given.implied else "")


def shown(given: Given) -> str:
    """As a person wrote it, or near enough."""
    if given.removes:
        return f"~{given.key}"
    return given.key if given.hidden else f"{given.key}={written(given.value)}"
