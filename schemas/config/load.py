"""From YAML, dotted overrides or JSON to a `RunConfig`; a fault names its key, its value and what was allowed
(L13)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from ..errors import ConfigError
from .root import RunConfig


def load_config(file: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """YAML file, then `key=value` overrides on top. Raises `ConfigError`."""
    return parse_config(merge(file, overrides))


def merge(file: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The raw nested mapping, not yet checked against the models."""
    try:
        base = OmegaConf.load(file) if file is not None else OmegaConf.create()
        if not isinstance(base, DictConfig):
            raise ConfigError(f"configuration {file} must be a mapping of sections, not a list")
        for text in overrides:
            if "=" not in text:
                raise ConfigError(f"override {text!r} is not of the form key=value, e.g. psrl.staleness=1")
        merged = OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides)))
        plain = OmegaConf.to_container(merged, resolve=True)
    except FileNotFoundError as error:
        raise ConfigError(f"configuration file {file} does not exist") from error
    except OSError as error:
        raise ConfigError(f"configuration file {file} cannot be read: {error.strerror}") from error
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"configuration {file or overrides} cannot be read: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"configuration {file} must be a mapping of sections, not {type(plain).__name__}")
    return {str(key): value for key, value in plain.items()}


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Validate a nested mapping. Raises `ConfigError` with one line per fault."""
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item) for item in error.errors())) from error


def _explain(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{key}: {message}" if key else message
    if item["type"] == "model_type":
        message = "Input should be a section: a mapping of keys"  # not the name of our class
    return f"{key}={item['input']!r}: {message[0].lower()}{message[1:]}"
