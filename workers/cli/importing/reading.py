"""A file of theirs, in whatever form, as keys and values. Called by `command.py`.

YAML (a configuration, or the composed one that Hydra writes to `.hydra/config.yaml`), a YAML list of overrides
(`.hydra/overrides.yaml`), a list of `key=value`, a command line or a whole shell script.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError, load

from ....schemas.config.yaml_text import Loader, read_yaml
from ....schemas.errors import ConfigError
from ....schemas.text import first_line
from .given import Given, Source, leaves, nested
from .held import held, released
from .shell import Script, Word

OVERRIDE = re.compile(
    r"(?P<sign>\+\+?|~)?(?P<key>[A-Za-z_][\w-]*(?:[./@][\w@-]+)*)(?:(?P<equals>=)(?P<value>.*))?", re.DOTALL
)
BASE = re.compile(r"(?:--config-name|-cn)=(.+)")
BASES = ("ppo_trainer", "ppo_megatron_trainer")
MISSING = "???"
"""OmegaConf's word for a value that has to come from elsewhere."""
TOP_LEVEL = frozenset(("model_engine",))
YAML_SUFFIXES, SHELL_SUFFIXES = (".yaml", ".yml", ".json"), (".sh", ".bash", ".slurm", ".sbatch")


def read(file: Path, text: str, environment: Mapping[str, str]) -> Source:
    """`file` is named, and its suffix says what is in it. Raises `ConfigError`."""
    as_yaml = file.suffix in YAML_SUFFIXES or (file.suffix not in SHELL_SUFFIXES and _is_yaml(_loaded(text)))
    try:
        source = _yaml(file, text, environment) if as_yaml else _shell(file, text, environment)
    except RecursionError as error:
        raise ConfigError(f"{file} cannot be read: its values are nested too deeply") from error
    if not source.given:
        raise ConfigError(f"{file} has no key of veRL's or PSRL's; allowed: their YAML, key=value, or a command line")
    return source


def _is_yaml(loaded: Any) -> bool:
    """An override with a colon in its value looks like a mapping, too."""
    return isinstance(loaded, list) or (isinstance(loaded, dict) and not any("=" in str(key) for key in loaded))


def _loaded(text: str) -> Any:
    try:
        return load(text, Loader)
    except (YAMLError, ValueError, RecursionError):
        return None


def _yaml(file: Path, text: str, environment: Mapping[str, str]) -> Source:
    loaded = _loaded(text)
    if isinstance(loaded, list) and all(isinstance(one, str) for one in loaded):
        return Source(_resolved(found for one in loaded for found in _override(Word(one, 0))))
    values, places = read_yaml(file, text)
    within = "\n".join(one.removesuffix("\n") for one in _texts(values))
    if "main_ppo" in within:  # a launcher's file or a notebook, with the command line as text in it
        return _shell(file, within, environment)
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
            given += _override(word) or _quoted(word, environment)
    if script.flow_line:
        notes.append(f"{file}, line {script.flow_line}: branches and loops are not followed; every line was read once")
    return Source(_resolved(given), tuple(notes))


def _quoted(word: Word, environment: Mapping[str, str]) -> list[Given]:
    """A command line that is handed on in quotes, as to `bash -c` or `srun`."""
    if word.hidden or "=" not in word.text or not any(char.isspace() for char in word.text):
        return []
    try:
        inner = [found for one in Script(word.text, environment, TOP_LEVEL).words() for found in _override(one)]
    except ConfigError:  # a text with an apostrophe in it
        return []
    return [replace(one, line=word.line) for one in inner]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _about_base(name: str) -> Iterator[str]:
    if name.removesuffix(".yaml") not in BASES:
        yield f"the base configuration {name} is not read, only what is written over it"


def _override(word: Word) -> list[Given]:
    """Hydra's forms: `key=value`, `+key=value`, `++key=value`, `~key`."""
    return list(_read_override(word))


def _read_override(word: Word) -> Iterator[Given]:
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
    if text in ("", "None"):
        return None if text else ""
    if text.startswith("{"):
        text = re.sub(r"([\w'\"]):(?=[^\s/])", r"\1: ", text)
    loaded = _loaded(held(text))
    if isinstance(loaded, dict | list):
        return released(loaded) if text[0] in "{[" else text  # `a: b` and `- a` only look like more
    if isinstance(loaded, str) or (loaded is None and text not in ("null", "~", "Null", "NULL")):
        return released(loaded) if text[0] in "'\"" else text
    return loaded


def _resolved(found: Iterator[Given] | list[Given]) -> tuple[Given, ...]:
    """With the values of other keys in the place of `${section.key}`; those of environment variables stay."""
    given = [one if one.value != MISSING else replace(one, value=None) for one in found]
    try:
        whole = OmegaConf.create(nested({one.key: held(one.value) for one in given if not one.removes}))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'a value'} cannot be read: {first_line(str(error))}") from error
    return tuple(leaf for one in given for leaf in _resolve(one, whole))


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
        yield Given(key, released(inner), one.line)


def _refers(value: Any) -> bool:
    if isinstance(value, list):
        return any(_refers(one) for one in value)
    return isinstance(value, str) and "${" in held(value)
