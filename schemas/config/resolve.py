"""From values that name others (`${section.key}`, `${oc.env:NAME}`) to plain ones. Called by `files.py`, `load.py`."""

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from ..errors import ConfigError
from ..text import first_line
from .places import Places, with_places


def resolved(merged: DictConfig, places: Places) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        plain = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = (error.full_key or "").partition("[")[0]
        written = OmegaConf.to_container(merged)
        for part in key.split("."):
            written = written.get(part) if isinstance(written, dict) else written
        raise ConfigError(with_places(f"{key}={written}: {_unresolved(error)}", key, places)) from error
    return {str(key): value for key, value in dict(plain).items()}


def _unresolved(error: OmegaConfBaseException) -> str:
    if isinstance(error, MissingMandatoryValue):
        return "a value has to be given in its place, e.g. by key=value behind the file"
    said = first_line(str(error))
    if variable := re.search(r"Environment variable '(\w+)' not found", said):
        return f"the environment variable {variable[1]} is not set; a default is written ${{{variable[1]}:-default}}"
    if key := re.match(r"Interpolation key '([^']+)' not found", said):
        return f"there is no key {key[1]!r} whose value it could have; environment variables are in capitals"
    return said[:1].lower() + said[1:]
