"""From a file, `key=value` overrides and what a run recorded to the scenarios that are compared. Called by the CLI.

A file has the sections `psrl` and `simulate`, and may have `variants`: names with lists of overrides. It may be the
configuration of a run, too: what else such a one has is no part of the simulation.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ...schemas.config import RunConfig, merge_with_places
from ...schemas.config.load import parsed
from ...schemas.errors import ConfigError, one_line
from .scenario import Scenario

SECTIONS = ("psrl", "simulate")
VARIANTS = "variants"
AS_GIVEN = "as given"
"""Without variants of its own, the file as it is."""


@dataclass(frozen=True)
class Comparison:
    scenarios: Mapping[str, Scenario]
    """By name; the first is what the others are compared with."""
    unread: tuple[str, ...]
    """Sections of the file that a simulation has no use for."""


def read(
    file: Path | None, overrides: Sequence[str], more: Sequence[str], recorded: Mapping[str, Any] | None = None
) -> Comparison:
    """`more`: further variants, each some overrides in one text. `recorded`: what file and overrides stand on. Raises
    `ConfigError`."""
    given = merge_with_places(file, overrides).values
    variants = {AS_GIVEN: (), **_variants(given.get(VARIANTS))} | {text: _changes(text) for text in more}
    if given.get(VARIANTS):
        del variants[AS_GIVEN]  # Who names variants wants those.
    scenarios = {
        name: _scenario(name, file, [*overrides, *changes], recorded or {}) for name, changes in variants.items()
    }
    unread = [key for key in given if key in RunConfig.model_fields and key not in SECTIONS]
    return Comparison(scenarios, tuple(unread))


def _scenario(name: str, file: Path | None, overrides: Sequence[str], recorded: Mapping[str, Any]) -> Scenario:
    values, places = merge_with_places(file, overrides)
    unknown = [key for key in values if key not in (*SECTIONS, VARIANTS, *RunConfig.model_fields)]
    if unknown:
        raise ConfigError(f"unknown section {unknown[0]!r}; known here: {', '.join((*SECTIONS, VARIANTS))}")
    chosen = {key: values[key] for key in SECTIONS if key in values}
    try:
        return parsed(Scenario, _on(recorded, chosen), places)
    except ConfigError as error:
        raise ConfigError(str(error) if name == AS_GIVEN else f"variant {name!r}: {error}") from error


def _on(recorded: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Lengths that are given replace those that were recorded: the two have no key in common."""
    below = dict(recorded)
    costs = chosen.get("simulate")
    if below and isinstance(costs, dict) and costs.get("lengths"):
        below["simulate"] = {key: value for key, value in below["simulate"].items() if key != "lengths"}
    try:
        whole = OmegaConf.to_container(OmegaConf.merge(below, chosen))
    except TypeError as error:  # a list where a section was, or the other way round
        raise ConfigError(f"what is given does not fit what the run has recorded: {one_line(error)}") from error
    assert isinstance(whole, dict)
    return {str(key): value for key, value in whole.items()}


def _changes(text: str) -> tuple[str, ...]:
    try:
        changes = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--with {text!r} cannot be read: {one_line(error)}") from error
    if not changes:
        raise ConfigError("--with is empty; allowed: KEY=VALUE, several with spaces between")
    return changes


def _variants(written: Any) -> dict[str, tuple[str, ...]]:
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise ConfigError(f"{VARIANTS}={written!r}; allowed: names, each with a list of key=value")
    for name, changes in written.items():
        if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes):
            raise ConfigError(f"{VARIANTS}.{name}={changes!r}; allowed: a list of key=value, e.g. [psrl.staleness=1]")
    return {str(name): tuple(changes) for name, changes in written.items()}
