"""A run's reward functions at admission: what can be known to be wrong with them is refused here."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...schemas.config import RewardIsolation, RewardPart, RewardSection
from ...schemas.errors import DataError, RewardLoadError, UserCodeFailed
from ..user_code.prepared import Found
from ..user_code.process import examine
from .built_in.registry import built_in
from .judge import Judge, recipe
from .shapes import Row, columns_of


class DataRow(Row, Protocol):
    """A row of the data."""

    @property
    def row(self) -> int: ...


class Loaded(NamedTuple):
    """One function of a reward that may be called."""

    part: RewardPart
    found: Found
    notes: tuple[str, ...]
    """What people should know of it."""


def check_rewards(reward: RewardSection) -> tuple[Loaded, ...]:
    """Raises `RewardLoadError`."""
    return tuple(map(_loaded, reward.parts))


def check_rows(loaded: Iterable[Loaded], rows: Mapping[str, Sequence[DataRow]]) -> None:
    """`rows`: of the data, by the key that names their files. Raises `RewardLoadError` for a function that cannot be
    called with them, and `DataError` for a row of which it can make nothing."""
    for part, found, _ in loaded:
        columns = (name for of_files in rows.values() for row in of_files for name in columns_of(row))
        check_columns(part.limits, found, columns, part.key)
        if ours := built_in(part.limits, part.key):
            for key, of_files in rows.items():
                for row in of_files:
                    try:
                        ours.check_row(row)
                    except ValueError as fault:
                        raise DataError(f"{key}, row {row.row}: {_named(part.limits, part.key)}: {fault}") from fault


def check_reward(reward: RewardSection, key: str = "reward") -> Found:
    """Loads it in a process of its own, which a module may end. Raises `RewardLoadError`."""
    try:
        found = examine(recipe(reward, key))
    except UserCodeFailed as failure:
        raise RewardLoadError(f"{_named(reward, key)}: importing it failed: {failure}") from failure
    if found.need and reward.isolation is RewardIsolation.THREAD:
        raise RewardLoadError(
            f"reward.isolation=thread, but {found.need}, which needs a process of its own; "
            "allowed: reward.isolation=auto or process"
        )
    return found


def check_columns(reward: RewardSection, found: Found, columns: Iterable[str], key: str = "reward") -> None:
    """`columns` are what the data have for it. Raises `RewardLoadError` for a function that cannot be called with
    them."""
    there = sorted(set(columns))
    if missing := sorted(found.about.columns - set(there)):
        raise RewardLoadError(
            f"{_named(reward, key)} takes {found.about.signature}: the data have no column "
            f"{', '.join(map(repr, missing))}; columns there: {', '.join(there) or 'none beside the prompt'}"
        )


def chosen_for(reward: RewardSection, found: Found, name: str = "") -> str | None:
    """What was decided on the user's behalf, for people to know."""
    if found.need and reward.isolation is RewardIsolation.AUTO:
        return f"the reward {f'{name} ' if name else ''}runs in processes of its own: {found.need}"
    return None


def _loaded(part: RewardPart) -> Loaded:
    ours = built_in(part.limits, part.key)
    if ours is None:
        found = check_reward(part.limits, part.key)
        note = chosen_for(part.limits, found, part.name)
    else:
        found = Found("", Judge(part.limits, part.key).about)
        try:
            note = ours.admit()
        except RewardLoadError as refusal:
            raise RewardLoadError(f"{part.key}.kwargs.{refusal}") from refusal
    return Loaded(part, found, (note,) if note else ())


def _named(reward: RewardSection, key: str) -> str:
    return f"{key}.function={reward.function!r}"
