"""A configuration file and what it includes, as one mapping in which nothing is resolved yet. Called by `load.py`.

`include: base.yaml`, or a list of files, at the top of a file: each is looked for beside the file that names it, a
later one wins over an earlier one, and the file itself over all of them. A circle is refused.
"""

from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ..errors import ConfigError
from ..text import first_line
from .places import Place, with_places
from .resolve import resolved
from .variables import with_variables
from .yaml_text import read_yaml

INCLUDE = "include"


class Written(NamedTuple):
    values: DictConfig
    places: dict[str, Place]


def read_file(file: Path, through: tuple[Path, ...] = ()) -> Written:
    """`through`: the files whose includes led here. Raises `ConfigError`."""
    way = (*through, file)
    if file.resolve() in [one.resolve() for one in through]:
        raise ConfigError(f"configuration {file} includes itself: {' -> '.join(str(one) for one in way)}")
    values, places = read_yaml(file, _text(file, through))
    if "defaults" in values:
        raise ConfigError(f"defaults: is Hydra's; allowed: include: other.yaml ({places['defaults']})")
    layers: list[DictConfig] = []
    whole: dict[str, Place] = {}
    for name in _included(values.pop(INCLUDE, None), places.pop(INCLUDE, None)):
        layer = read_file(file.parent / Path(name).expanduser(), way)
        layers.append(layer.values)
        whole |= layer.places
    try:
        merged = OmegaConf.merge(*layers, OmegaConf.create(with_variables(values)))
    except (OmegaConfBaseException, TypeError) as error:
        what = "merged with what it includes" if layers else "read"
        told = f"configuration {file} cannot be {what}: {first_line(str(error))}"
        raise ConfigError(with_places(told, getattr(error, "full_key", None) or "", places)) from error
    assert isinstance(merged, DictConfig)
    return Written(merged, whole | places)


def _text(file: Path, through: tuple[Path, ...]) -> str:
    by = f", included by {through[-1]}," if through else ""
    try:
        return file.read_text(encoding="utf-8").removeprefix("\N{BOM}")
    except FileNotFoundError as error:
        raise ConfigError(f"configuration file {file}{by} does not exist") from error
    except OSError as error:
        raise ConfigError(f"configuration file {file}{by} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration {file}{by} cannot be read: {error}") from error


def _included(named: Any, place: Place | None) -> list[str]:
    if named is None:
        return []
    (found,) = resolved(OmegaConf.create({INCLUDE: with_variables(named)}), {INCLUDE: place} if place else {}).values()
    names = found if isinstance(found, list) else [found]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{INCLUDE}={named!r}: allowed: a file, or a list of files ({place})")
    return [str(name) for name in names]
