"""`psrl config docs`: docs/configuration.md, made from the models so that it cannot differ from them."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ...schemas.config import RunConfig
from ...schemas.environment import PROCESSES, STACK, Variable

HEADER = """# Configuration

Made by `psrl config docs` from the models in `schemas/config/`; a test compares.

A run is defined by a YAML file and `key=value` overrides (`psrl train run.yaml psrl.staleness=2`), or by the same keys
as JSON (`temporal workflow start --type TrainingRun --input '{"config": {...}}'`). `psrl config show run.yaml` prints
what is in effect. An unknown key is refused. Units are in the names: `_s` seconds, `_tokens` tokens, `_gb` GB.

- **One file over another:** `include: base.yaml`, or a list of files, at the top of a file. Each is looked for beside
  the file that names it; a later one wins over an earlier one, and the file itself over all of them.
- **Environment variables** in values: `$DATA/train.parquet`, `${DATA}`, `${DATA:-default}` or `${oc.env:DATA,default}`;
  names in capitals. One that is not set and has no default is refused. `\\$DATA` keeps the dollar.
- **Another key's value:** `${psrl.rollout_n}`.
- **Numbers and switches** may be text: `"1e-6"`, `"true"`. `~` alone is null; a path may begin with `~/`. A single file
  needs no list around it.

Configuration of veRL or PSRL is translated by `psrl config import`: [coming from veRL](coming-from-verl.md).
"""


ENVIRONMENT = """
## Environment

Where the stack is: without any of these, `psrl` and the processes read `stack.json`, which `psrl up` writes into the
home. When one of the three addresses is set, the environment describes the whole stack and nothing is read from the
file: for processes that are started by something other than `psrl up`, such as containers.

| variable | when it is not set | meaning |
|---|---|---|"""
PROCESS_ENVIRONMENT = """
How processes run. `psrl up` sets the values of the second column for its parts, unless they are set already.

| variable | when it is not set | meaning |
|---|---|---|"""

TYPE_NAMES: dict[type, str] = {str: "text", int: "integer", float: "number", bool: "true/false"}


def document() -> str:
    parts = [HEADER]
    for name, field in RunConfig.model_fields.items():
        parts.append(f"\n## {name}\n")
        parts.append(_about(field))
        parts.append("\n| key | type | default | meaning |\n|---|---|---|---|")
        parts += [row(key, leaf) for key, leaf in _documented(name, field)]
    parts.append(_environment())
    return "\n".join(parts) + "\n"


def _environment() -> str:
    return "\n".join([ENVIRONMENT, *_variables(STACK), PROCESS_ENVIRONMENT, *_variables(PROCESSES)])


def _variables(table: Sequence[Variable]) -> list[str]:
    return [f"| `{one.name}` | {one.default} | {one.meaning} |" for one in table]


def leaves(key: str, field: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
    """Every key that holds a value, dotted, in the order of the models."""
    model = field.annotation
    if isinstance(model, type) and issubclass(model, BaseModel):
        for name, inner in model.model_fields.items():
            yield from leaves(f"{key}.{name}", inner)
    else:
        yield key, field


def _documented(key: str, field: FieldInfo) -> Iterator[tuple[str, FieldInfo]]:
    """With what each value of a mapping holds, under a name of people's own."""
    for leaf, inner in leaves(key, field):
        yield leaf, inner
        of = get_args(inner.annotation)
        if get_origin(inner.annotation) is dict and isinstance(of[1], type) and issubclass(of[1], BaseModel):
            for name, one in of[1].model_fields.items():
                yield from _documented(f"{leaf}.NAME.{name}", one)


def _about(field: FieldInfo) -> str:
    """The first sentence of a section's file says what the section is for."""
    model = field.annotation
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return field.description or ""
    module = inspect.getmodule(model)
    text = (inspect.getdoc(module) or "").split("\n\n")[0] if module else ""
    said = text.partition(": ")[2] or text
    return said[:1].upper() + said[1:]


def row(key: str, field: FieldInfo) -> str:
    """Of a table of keys."""
    meaning = " ".join((field.description or "").split())
    for kind in _enums(field.annotation):
        values = "; ".join(f"`{value}`{': ' + about if about else ''}" for value, about in meanings(kind))
        meaning = f"{meaning} {values}".strip()
    cells = [f"`{key}`", _type(field.annotation) + _limits(field), f"`{_default(field)}`", meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join("null" if one is NoneType else _type(one) for one in inner)
    if origin is tuple:
        return f"list of {_type(inner[0])}" if inner[-1] is Ellipsis else f"{len(inner)} × {_type(inner[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "choice"
    return TYPE_NAMES[kind]


def _limits(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        f"{sign} {getattr(limit, name)}"
        for limit in field.metadata
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    ]
    return f" {', '.join(found)}" if found else ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return str(value) if value != "" else '""'


def _enums(kind: Any) -> Iterator[type[StrEnum]]:
    for one in get_args(kind) or (kind,):
        if isinstance(one, type) and issubclass(one, StrEnum):
            yield one


def meanings(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Each member with the text under it in the source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            target = before.targets[0]
            assert isinstance(target, ast.Name)
            texts[target.id] = " ".join(str(after.value.value).split()).rstrip(".")
    for member in kind:
        yield member.value, texts.get(member.name, "")
