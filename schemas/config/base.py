"""The base of every configuration section: frozen, and a key nobody knows is refused with the nearest name."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from ..errors import nearest


class Section(BaseModel):
    """One group of keys. The text under each field is its documentation (docs/configuration.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if isinstance(values, dict):
            known = list(cls.model_fields)
            for key in values:
                if key not in known:
                    raise ValueError(
                        f"unknown key {key!r}{_advice(str(key), known)}; known here: {', '.join(sorted(known))}"
                    )
        return values

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


def _advice(key: str, known: list[str]) -> str:
    section, _, below = key.partition(".")
    if below and section in known:
        return f" ({below!r} is written below {section!r}, indented)"
    return nearest(key, known)
