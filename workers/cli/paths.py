"""Paths in a configuration, made absolute where a person gave them, because the workers live in another directory.
Called by the commands that read a run's configuration."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...schemas.config.data import TEMPLATE_SUFFIX, as_files
from ...schemas.config.reward import is_file
from ...schemas.errors import ConfigError

ANY = "*"
"""Every key of a section whose keys are names."""


def make_absolute(values: dict[str, Any]) -> None:
    """In place. Raises `ConfigError`."""
    for key, change in CHANGES:
        _change(values, key.split("."), change)


def _change(section: Any, path: Sequence[str], change: Callable[[Any], Any]) -> None:
    if not isinstance(section, dict):
        return
    name, *below = path
    for key in list(section) if name == ANY else [name]:
        if below:
            _change(section.get(key), below, change)
        elif section.get(key):
            section[key] = change(section[key])


def _file(path: str) -> str:
    if "://" in path:  # an address stays one: who looks there says that it is no path
        return path
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise ConfigError(f"{path}: nobody of this name has a home on this machine") from error


def _files(paths: Any) -> list[str]:
    return [_file(path) for path in as_files(paths)]


def _template(name: str) -> str:
    return _file(name) if name.endswith(TEMPLATE_SUFFIX) else name


def _code(path: str) -> str:
    """`path/to/file.py:function`; modules are looked for where the workers live."""
    place, _, name = path.rpartition(":")
    return f"{_file(place)}:{name}" if is_file(place) else path


def _all_code(paths: Sequence[str]) -> list[str]:
    return [_code(path) for path in paths]


CHANGES: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("model.path", _file),
    ("data.train_files", _files),
    ("data.val_files", _files),
    ("data.chat_template", _template),
    ("psrl.rollout_coordination.routing_strategy.cost_model_path", _file),
    ("reward.function", _code),
    (f"reward.functions.{ANY}.function", _code),
    ("psrl.group_post_process.name", _code),
    ("psrl.agentic_rl.environment", _code),
    ("psrl.agentic_rl.tools", _all_code),
    ("psrl.agentic_rl.agent", _code),
)
