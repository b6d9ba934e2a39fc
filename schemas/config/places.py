"""Where each key of a configuration is written, so that a fault names file and line. Filled by `yaml_text.py`;
`load.py` puts it behind what it says."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

KEY = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")
UNKNOWN = re.compile(r"unknown key '([^']+)'")


class Place(NamedTuple):
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


Places = Mapping[str, Place]
"""By dotted key. A key that was given on the command line has none: whoever typed it still sees it."""


def place_of(key: str, places: Places) -> Place | None:
    """Of the key, else of the section around it: a list's items have no place of their own."""
    while key:
        if found := places.get(key):
            return found
        key = key.rpartition(".")[0]
    return None


def with_places(told: str, key: str, places: Places) -> str:
    """What was said of `key`, and where to look. A rule that spans sections has no key, but names those it is about."""
    if unknown := UNKNOWN.search(told):
        key = f"{key}.{unknown[1]}" if key else unknown[1]
    if key:
        place = place_of(key, places)
        return f"{told} ({place})" if place else told
    about = {name: places[name] for name in KEY.findall(told) if name in places}
    if len(about) == 1:
        return f"{told} ({next(iter(about.values()))})"
    return f"{told} ({'; '.join(f'{name}: {place}' for name, place in about.items())})" if about else told
