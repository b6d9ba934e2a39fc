"""The table: one row for each key of veRL's and PSRL's, a file for each section. `find` is what translates."""

from fnmatch import fnmatchcase
from functools import cache

from ..row import Row
from . import (
    actor,
    agent,
    algorithm,
    coordination,
    data,
    deployment,
    elsewhere,
    engines,
    model,
    psrl,
    reward,
    rollout,
    trainer,
)

SECTIONS: dict[str, tuple[Row, ...]] = {
    "PSRL: staleness, weights, filters": psrl.ROWS,
    "PSRL: rollout coordination": coordination.ROWS,
    "PSRL: deployment": deployment.ROWS,
    "Data": data.ROWS,
    "Model": model.ROWS,
    "Actor": actor.ROWS,
    "Engines of the trainer": engines.ROWS,
    "Rollout": rollout.ROWS,
    "Agent loops": agent.ROWS,
    "Algorithm": algorithm.ROWS,
    "Reward": reward.ROWS,
    "Trainer": trainer.ROWS,
    "Other sections": elsewhere.ROWS,
}
"""By heading, in the order of the page."""


@cache
def _by_key() -> dict[str, Row]:
    return {row.key: row for rows in SECTIONS.values() for row in rows}


@cache
def _patterns() -> tuple[Row, ...]:
    """The longest first, which says most about a key."""
    return tuple(sorted((row for row in _by_key().values() if "*" in row.key), key=lambda row: -len(row.key)))


def find(key: str) -> Row | None:
    """The row of a key, else that of the nearest group it is in."""
    return _by_key().get(key) or next((row for row in _patterns() if fnmatchcase(key, row.key)), None)


def known_keys() -> tuple[str, ...]:
    """Those with a row of their own."""
    return tuple(key for key in _by_key() if "*" not in key)
