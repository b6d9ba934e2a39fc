"""YAML as people write it, with the line of each key. Called by `files.py`.

Two things differ from YAML 1.1: `1e-6` is a number, though it has no point, and a date is text. A key that is written
twice in one mapping is refused, where YAML would take the last.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yaml import CollectionNode, MappingNode, MarkedYAMLError, Node, SafeLoader, SequenceNode, YAMLError

from ..errors import ConfigError, one_line
from .places import Place

FLOAT, DATE = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"
MAX_VALUES = 100_000
"""With those that aliases repeat: a few lines of them can stand for more than any memory holds."""
EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")


class Loader(SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != DATE]
        for first, pairs in SafeLoader.yaml_implicit_resolvers.items()
    }


Loader.add_implicit_resolver(FLOAT, EXPONENT, list("-+0123456789"))


def read_yaml(file: Path, text: str) -> tuple[dict[str, Any], dict[str, Place]]:
    """`file` is only named. Raises `ConfigError`."""
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        if root is None:
            return {}, {}
        if not isinstance(root, MappingNode):
            kind = "a list" if isinstance(root, SequenceNode) else repr(root.value)
            raise ConfigError(f"configuration {file} must be a mapping of sections, not {kind}")
        if _size(file, root, {}) > MAX_VALUES:
            raise ConfigError(f"configuration {file} has more than {MAX_VALUES} values, with those that aliases repeat")
        places = dict(_places(file, root, ""))
        values: dict[Any, Any] = loader.construct_document(root)
    except MarkedYAMLError as error:
        raise ConfigError(f"configuration {file}{_fault(error, text)}") from error
    except (YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"configuration {file} cannot be read: {one_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"configuration {file} cannot be read: its values are nested too deeply") from error
    return {str(key): value for key, value in values.items()}, places


def _fault(error: MarkedYAMLError, text: str) -> str:
    if error.problem_mark is None:
        return f" cannot be read: {error.problem}"
    line = error.problem_mark.line
    written = text.splitlines()[line] if line < len(text.splitlines()) else ""
    advice = "; inside { } and [ ] a value that has ${...} needs quotes" if "${" in written else ""
    return f", line {line + 1} cannot be read: {error.problem}{advice}"


def _size(file: Path, node: Node, known: dict[int, int]) -> int:
    """How many values it stands for. `known`: of what was seen already, 0 while that is being looked at."""
    if not isinstance(node, CollectionNode):
        return 1
    if known.get(id(node)) == 0:
        kind = "mapping" if isinstance(node, MappingNode) else "list"
        raise ConfigError(f"configuration {file}, line {node.start_mark.line + 1}: a {kind} contains itself")
    if id(node) not in known:
        known[id(node)] = 0
        inner = [one for pair in node.value for one in pair] if isinstance(node, MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(file, one, known) for one in inner)
    return known[id(node)]


def _places(file: Path, node: MappingNode, above: str) -> Iterator[tuple[str, Place]]:
    seen: dict[str, int] = {}
    for name, value in node.value:
        key, line = f"{above}{name.value}", name.start_mark.line + 1
        if key in seen:
            raise ConfigError(f"{key} is written twice ({file}, lines {seen[key]} and {line})")
        seen[key] = line
        yield key, Place(file, line)
        if isinstance(value, MappingNode):
            yield from _places(file, value, f"{key}.")
