"""A file of theirs, in whatever form, as keys and values. Called by `command.py`.

YAML (a configuration, or the composed one that Hydra writes to `.hydra/config.yaml`), a YAML list of overrides
(`.hydra/overrides.yaml`), a list of `key=value`, a command line or a whole shell script.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError, load

from ....schemas.config.yaml_text import Loader, read_yaml
from ....schemas.errors import ConfigError
from ....schemas.text import first_line
from .given import Given, Source, leaves, nested
from .shell import Script, Word

OVERRIDE = re.compile(
    r"(?P<sign>\+\+?|~)?(?P<key>[A-Za-z_][\w-]*(?:[./@][\w@-]+)*)(?:(?P<equals>=)(?P<value>.*))?", re.DOTALL
)
BASE = re.compile(r"(?:--config-name|-cn)=(.+)")
BASES = ("ppo_trainer", "ppo_megatron_trainer")
TOP_LEVEL = frozenset(("model_engine",))
YAML_SUFFIXES, SHELL_SUFFIXES = (".yaml", ".yml", ".json"), (".sh", ".bash", ".slurm", ".sbatch")


def read(file: Path, text: str, environment: Mapping[str, str]) -> Source:
    """`file` is named, and its suffix says what is in it. Raises `ConfigError`."""
    if file.suffix in YAML_SUFFIXES:
        return _yaml(file, text)
    if file.suffix not in SHELL_SUFFIXES and isinstance(_loaded(text), dict | list):
        return _yaml(file, text)
    return _shell(file, text, environment)


def _loaded(text: str) -> Any:
    try:
        return load(text, Loader)
    except (YAMLError, ValueError):
        return None


def _yaml(file: Path, text: str) -> Source:
    loaded = _loaded(text)
    if isinstance(loaded, list) and all(isinstance(one, str) for one in loaded):
        return Source(_resolved(found for one in loaded for found in _override(Word(one, 0))))
    values, places = read_yaml(file, text)
    notes: tuple[str, ...] = ()
    if values.pop("defaults", None) is not None:
        notes = (
            f"{file}: the files in `defaults` are not read; the whole is in .hydra/config.yaml of a run of theirs",
        )
    found = (Given(key, value, places[key].line if key in places else 0) for key, value in leaves(values))
    return Source(_resolved(found), notes)


def _shell(file: Path, text: str, environment: Mapping[str, str]) -> Source:
    script = Script(text, environment, TOP_LEVEL)
    given: list[Given] = []
    notes: list[str] = []
    for word in script.words():
        if base := BASE.fullmatch(word.text):
            notes += _about_base(base[1])
            if "megatron" in base[1]:
                given.append(Given("model_engine", "megatron", word.line))
        else:
            given += _override(word)
    if script.flow_line:
        notes.append(f"{file}, line {script.flow_line}: branches and loops are not followed; every line was read once")
    if not given:
        raise ConfigError(f"{file} has no key of veRL's or PSRL's; allowed: their YAML, key=value, or a command line")
    return Source(_resolved(given), tuple(notes))


def _about_base(name: str) -> Iterator[str]:
    if name.removesuffix(".yaml") not in BASES:
        yield f"the base configuration {name} is not read, only what is written over it"


def _override(word: Word) -> Iterator[Given]:
    """Hydra's forms: `key=value`, `+key=value`, `++key=value`, `~key`."""
    found = OVERRIDE.fullmatch(word.text.removesuffix(","))
    if found is None:
        return
    key, removes = found["key"], found["sign"] == "~"
    if not (removes or found["equals"]) or not ("." in key or key in TOP_LEVEL or found["sign"]):
        return
    if removes or word.hidden:
        yield Given(key, None, word.line, word.hidden, removes)
        return
    for name, value in leaves(_value(found["value"]), key):
        yield Given(name, value, word.line)


def _value(text: str) -> Any:
    """As Hydra reads it: quotes, lists, mappings, numbers, true and null."""
    if text == "":
        return ""
    if text.startswith("{"):
        text = re.sub(r"([\w'\"]):(?=[^\s/])", r"\1: ", text)
    loaded = _loaded(text)
    if isinstance(loaded, dict | list) and text[0] not in "{[":
        return text  # `a: b`, `- a`: text that only looks like more
    if loaded is None and text not in ("null", "~", "Null", "NULL"):
        return None if text == "None" else text
    return text if isinstance(loaded, str) and text[0] not in "'\"" else loaded


def _resolved(found: Iterator[Given] | list[Given]) -> tuple[Given, ...]:
    """With the values of other keys in the place of `${section.key}`; those of environment variables stay."""
    given = list(found)
    try:
        whole = OmegaConf.create(nested({one.key: _kept(one.value) for one in given if not one.removes}))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'a value'} cannot be read: {first_line(str(error))}") from error
    return tuple(leaf for one in given for leaf in _resolve(one, whole))


ENVIRONMENT = re.compile(r"\$\{oc\.env:")
HELD = "\N{SYMBOL FOR SUBSTITUTE}{oc.env:"


def _kept(value: Any) -> Any:
    if isinstance(value, list):
        return [_kept(one) for one in value]
    return ENVIRONMENT.sub(HELD, value) if isinstance(value, str) else value


def _resolve(one: Given, whole: Any) -> Iterator[Given]:
    if one.removes or one.hidden or not _refers(one.value):
        yield one
        return
    try:
        value = OmegaConf.select(whole, one.key)
        plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        yield Given(one.key, None, one.line, f"{one.value}: {first_line(str(error))}")
        return
    for key, inner in leaves(plain, one.key):
        yield Given(key, _released(inner), one.line)


def _refers(value: Any) -> bool:
    if isinstance(value, list):
        return any(_refers(one) for one in value)
    return isinstance(value, str) and "${" in ENVIRONMENT.sub("", value)


def _released(value: Any) -> Any:
    if isinstance(value, list):
        return [_released(one) for one in value]
    return value.replace(HELD, "${oc.env:") if isinstance(value, str) else value
