"""What a reward that is built in is made of."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping

from ....schemas.messages.rewards import RewardSample
from ..shapes import Row

Returned = float | Mapping[str, float]


class BuiltIn(ABC):
    """Made of its options in each process that calls it. Making one costs next to nothing and raises `RewardLoadError`
    for options that no configuration can be checked for."""

    columns: frozenset[str] = frozenset()
    """Of the data, those that it cannot do without."""
    at_once: int | None = None
    """Calls at the same time that it can stand, below what the configuration allows."""

    @abstractmethod
    def __call__(self, sample: RewardSample) -> Returned | Awaitable[Returned]:
        """Raises for a sample that has no score."""

    def admit(self) -> str | None:
        """Once, when a run is admitted, by the process that will call it. Raises `RewardLoadError`; returns what people
        should know. May block."""
        return None

    def check_row(self, row: Row) -> None:
        """Of each row, then. Raises `ValueError`."""
        return
