"""From YAML, dotted overrides or JSON to a `RunConfig`; a fault names its key, its value, what was allowed, and the
file and line where it stands (L13)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from ..errors import ConfigError, one_line
from .base import Section, told
from .files import Written, read_file
from .places import Places, with_places
from .resolve import resolved
from .root import RunConfig
from .variables import with_variables

HYDRAS = ("+", "~")
S = TypeVar("S", bound=Section)


class Merged(NamedTuple):
    """A nested mapping, not yet checked against the models."""

    values: dict[str, Any]
    places: Places


def load_config(file: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """YAML file, then `key=value` overrides on top. Raises `ConfigError`."""
    return parse_config(*merge_with_places(file, overrides))


def merge(file: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """The values alone."""
    return merge_with_places(file, overrides).values


def merge_with_places(file: Path | None, overrides: Sequence[str]) -> Merged:
    """Everything resolved: what is included, other keys' values, the environment. Raises `ConfigError`."""
    written = read_file(file) if file is not None else Written(OmegaConf.create(), {})
    given = _overrides(overrides)
    try:
        merged = OmegaConf.merge(written.values, given)
    except (OmegaConfBaseException, TypeError) as error:
        told = f"overrides {' '.join(overrides)} do not fit what the file has: {one_line(error)}"
        raise ConfigError(told[:1000]) from error
    assert isinstance(merged, DictConfig)
    places = {key: place for key, place in written.places.items() if OmegaConf.select(given, key) is None}
    return Merged(resolved(merged, places), places)


def _overrides(texts: Sequence[str]) -> DictConfig:
    for text in texts:
        if text.startswith(HYDRAS):
            raise ConfigError(f"override {text!r}: +, ++ and ~ are Hydra's; allowed: key=value, e.g. psrl.staleness=1")
        if not text.partition("=")[0] or "=" not in text:
            raise ConfigError(f"override {text!r} is not of the form key=value, e.g. psrl.staleness=1")
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(list(texts)))
        return OmegaConf.create({str(key): with_variables(value) for key, value in dict(values).items()})
    except (OmegaConfBaseException, YAMLError, ValueError) as error:
        raise ConfigError(f"overrides {' '.join(texts)} cannot be read: {one_line(error)}") from error


def parse_config(values: Mapping[str, Any], places: Places = MappingProxyType({})) -> RunConfig:
    """Validate a nested mapping. Raises `ConfigError` with one line per fault."""
    return parsed(RunConfig, values, places)


def parsed(model: type[S], values: Mapping[str, Any], places: Places = MappingProxyType({})) -> S:
    """The same of a file that is no run's configuration."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        items = [{**item, "loc": _as_written(item["loc"], values)} for item in error.errors()]
        raise ConfigError("\n".join(_explain(item, places) for item in items)) from error


def _as_written(path: Sequence[str | int], values: Any) -> list[str | int]:
    """Where several sections may stand, pydantic puts the name of the chosen one (`kind: uniform`) into the path, where
    nobody wrote it."""
    written: list[str | int] = []
    for part in path:
        if isinstance(values, Mapping) and part not in values and part in values.values():
            continue
        written.append(part)
        values = values.get(part) if isinstance(values, Mapping) else None
    return written


def _explain(item: Any, places: Places) -> str:
    key = ".".join(str(part) for part in item["loc"])
    return "\n".join(with_places(line, "" if line.startswith(f"{key}.") else key, places) for line in told(item))
