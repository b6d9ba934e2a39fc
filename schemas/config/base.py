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
                        f"unknown key {key!r}{nearest(str(key), known)}; known here: {', '.join(sorted(known))}"
                    )
        return values
