"""The base of every configuration section: frozen; a key nobody knows is refused with the nearest name, and a value
that no store or clock takes with what they take."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ..errors import nearest
from ..text import storable

LARGEST, LARGEST_SEED = 2**31 - 1, 2**63 - 1
"""Whole numbers as the store's columns, and random generators, have them."""
YEAR_S = 365 * 24 * 60 * 60
"""The longest time: for ever is none, and neither Temporal nor Python can wait for it."""


AS_WRITTEN = {
    "model_type": "Input should be a section: a mapping of keys",
    "model_attributes_type": "Input should be a section: a mapping of keys",
    "tuple_type": "Input should be a list",
    "dict_type": "Input should be a mapping of keys",
}
"""What YAML calls the types that Python has other names for."""
QUOTE = "'"
"""Around a key in what pydantic says of a choice of sections."""


class Section(BaseModel):
    """One group of keys. The text under each field is its documentation (docs/configuration.md)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
    theirs: ClassVar[frozenset[str]] = frozenset()
    """Keys of veRL's that are no typing errors."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Keys of PSRL's that have no place here, with the reason."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if isinstance(values, dict):
            known = list(cls.model_fields)
            for key in values:
                if key in cls.refused:
                    raise ValueError(f"key {key!r} is not taken: {cls.refused[key]}")
                if key not in known:
                    raise ValueError(
                        f"unknown key {key!r}{cls._advice(str(key), known)}; known here: {', '.join(sorted(known))}"
                    )
        return values

    @field_validator("*")
    @classmethod
    def _can_be_kept(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if name.endswith("_s") and isinstance(value, int | float) and value > YEAR_S:
            raise PydanticCustomError("too_long", "input should be at most {limit}, a year", {"limit": YEAR_S})
        largest = LARGEST_SEED if name == "seed" else LARGEST
        if isinstance(value, int) and abs(value) > largest:
            raise PydanticCustomError("too_large", "input should be at most {limit}", {"limit": largest})
        if not isinstance(value, BaseModel) and (why := _not_storable(value)):
            raise PydanticCustomError("not_storable", "{why}", {"why": why})
        return value

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_sections(cls, values: Any) -> Any:
        """YAML has null where every key of a section is commented out."""
        if not isinstance(values, dict):
            return values
        return {key: {} if value is None and cls._has_section(key) else value for key, value in values.items()}

    @classmethod
    def _has_section(cls, key: Any) -> bool:
        kind = cls.model_fields[key].annotation if key in cls.model_fields else None
        return isinstance(kind, type) and issubclass(kind, Section)

    @classmethod
    def _advice(cls, key: str, known: list[str]) -> str:
        section, _, below = key.partition(".")
        if below and section in known:
            return f" ({below!r} is written below {section!r}, indented)"
        if section in cls.theirs:
            return " (veRL's; `psrl config import FILE` translates it)"
        return nearest(key, known)


def _not_storable(value: Any) -> str:
    """Why JSON or PostgreSQL does not take it; empty for what they do."""
    if isinstance(value, str):
        return "" if storable(value, len(value)) == value else "input should have no NUL and no half of a character"
    if isinstance(value, float) and not isfinite(value):
        return "input should be a finite number"
    if isinstance(value, Mapping):
        return next(filter(None, map(_not_storable, [*value, *value.values()])), "")
    if isinstance(value, list | tuple):
        return next(filter(None, map(_not_storable, value)), "")
    # A section in a mapping or list has looked at its own values.
    allowed = value is None or isinstance(value, bool | int | float | BaseModel)
    return "" if allowed else f"input should be text, a number, true, false, null, a list or a mapping, not {value!r}"


def told(item: Any, before: str = "") -> list[str]:
    """The lines of one of pydantic's faults. `before`: the key of what was validated."""
    key = ".".join([*([before] if before else []), *(str(part) for part in item["loc"])])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":
        return [f"{key}: {line}" if key and not line.startswith(f"{key}.") else line for line in message.splitlines()]
    if item["type"] == "missing":
        return [f"{key} is required"]
    context = item.get("ctx", {})
    if item["type"] == "union_tag_not_found":
        return [f"{key}.{context['discriminator'].strip(QUOTE)} is required"]
    if item["type"] == "union_tag_invalid":
        chosen = f"{key}.{context['discriminator'].strip(QUOTE)}={context['tag']!r}"
        return [f"{chosen}: input should be one of {context['expected_tags']}"]
    if item["type"] == "too_short":
        message = f"Input should have at least {context['min_length']} item"
    message = AS_WRITTEN.get(item["type"], message)
    value = "null" if item["input"] is None else repr(item["input"])
    return [f"{key}={value}: {message[0].lower()}{message[1:]}"]
