"""A key of ours, as the configuration's models have it. Called by `translate.py`."""

from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ....schemas.config import RunConfig
from ..config_docs import leaves


@cache
def fields() -> dict[str, FieldInfo]:
    """Every key that holds a value."""
    return {key: leaf for name, field in RunConfig.model_fields.items() for key, leaf in leaves(name, field)}


def default(key: str) -> Any:
    return _plain(fields()[key].get_default(call_default_factory=True), key)


def fitting(key: str, value: Any) -> Any:
    """The value as the key holds it, in YAML's types. Raises `ValueError` saying what is allowed."""
    try:
        return _plain(_adapter(key).validate_python(value), key)
    except ValidationError as error:
        said = str(error.errors()[0]["msg"])
        raise ValueError(said[:1].lower() + said[1:]) from error


def is_text(key: str) -> bool:
    return fields()[key].annotation in (str, str | None, tuple[str, ...])


@cache
def _adapter(key: str) -> TypeAdapter[Any]:
    field = fields()[key]
    kind: Any = field.annotation
    return TypeAdapter(Annotated[kind, *field.metadata] if field.metadata else kind)


def _plain(value: Any, key: str) -> Any:
    return _adapter(key).dump_python(value, mode="json", exclude_unset=True)
