"""What a file of theirs says, key by key, whatever its form. `reading.py` makes it, `translate.py` takes it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yaml import safe_dump


@dataclass(frozen=True)
class Given:
    key: str
    value: Any
    line: int
    hidden: str = ""
    """Why the value is not known: the script finds it only when it runs."""
    removes: bool = False
    """Hydra's `~key`: the key is taken out."""
    implied: bool = False
    """Not in the file: veRL's default, where ours is another."""


@dataclass(frozen=True)
class Source:
    given: tuple[Given, ...]
    notes: tuple[str, ...] = ()
    """What a person should know about how it was read."""


def written(value: Any) -> str:
    """As YAML has it, on one line."""
    return str(safe_dump(value, default_flow_style=True, width=float("inf"))).removesuffix("...\n").strip()


def value_at(values: Any, key: str) -> Any:
    """Of nested mappings, by a dotted key; null for one that is not there."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that holds a value, dotted. An empty mapping is a value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse. Of a key and one below it, the later wins."""
    whole: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        here = whole
        for section in sections:
            inner = here.get(section)
            if not isinstance(inner, dict):
                inner = here[section] = {}
            here = inner
        here[name] = value
    return whole
