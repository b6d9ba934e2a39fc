"""From a file, `key=value` overrides and what a run recorded to the scenarios that are compared. Called by the CLI.

A file has the sections `psrl` and `simulate`, and may have `variants`: names with lists of overrides. It may be the
configuration of a run, too: what else such a one has is no part of the simulation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ...schemas.config import RunConfig, merge_with_places
from ...schemas.config.load import parsed
from ...schemas.errors import ConfigError
from .scenario import Scenario

SECTIONS = ("psrl", "simulate")
VARIANTS = "variants"


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
    variants = {"as given": (), **_variants(given.get(VARIANTS))} | {text: tuple(text.split()) for text in more}
    if given.get(VARIANTS):
        del variants["as given"]  # Who names variants wants those.
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
    whole = OmegaConf.to_container(OmegaConf.merge(dict(recorded), chosen))
    assert isinstance(whole, dict)
    try:
        return parsed(Scenario, {str(key): value for key, value in whole.items()}, places)
    except ConfigError as error:
        raise ConfigError(f"variant {name!r}: {error}" if len(overrides) else str(error)) from error


def _variants(written: Any) -> dict[str, tuple[str, ...]]:
    if written is None:
        return {}
    if not isinstance(written, dict):
        raise ConfigError(f"{VARIANTS}={written!r}; allowed: names, each with a list of key=value")
    for name, changes in written.items():
        if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes):
            raise ConfigError(f"{VARIANTS}.{name}={changes!r}; allowed: a list of key=value, e.g. [psrl.staleness=1]")
    return {str(name): tuple(changes) for name, changes in written.items()}
