"""The branches of an episode: which they are, and which turns the sequence of each is made of. Used by scoring, the
trainer and whoever shows or audits a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...schemas.config import PsrlSection, RolloutSection
from ...schemas.messages.data import Purpose


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a branch left another."""

    index: int
    turn: int
    """The last one that both have."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Turns of one branch that follow each other in a sequence."""

    index: int
    last: int | None
    """The last of them; null: all that there are."""

    def holds(self, turn: int) -> bool:
        return self.last is None or turn <= self.last


def lineage(index: int, forks: Mapping[int, Fork | None]) -> list[Stretch]:
    """What the branch left, and what that one left before, in order of the tokens; its own turns come last. It ends,
    since a branch leaves lower ones only."""
    found = [Stretch(index, None)]
    while (fork := forks.get(found[-1].index)) is not None:
        found.append(Stretch(fork.index, fork.turn))
    return found[::-1]


def fork_of(index: int | None, turn: int | None) -> Fork | None:
    """From the columns of a trajectory."""
    return None if index is None or turn is None else Fork(index, turn)


def episodes_of(config: Mapping[str, Any], purpose: str) -> int:
    """N' of a run's groups, from its configuration as it is stored: branch k of episode e has index e + k * N'."""
    if purpose == Purpose.TRAIN:
        return PsrlSection.model_validate(config.get("psrl", {})).offered_trajectories
    return RolloutSection.model_validate(config.get("rollout", {})).val.n if purpose == Purpose.VALIDATION else 1
