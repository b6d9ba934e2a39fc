"""What is counted while a run is simulated."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Tally:
    drawn: int = 0
    """Groups."""
    requests: int = 0
    """Trajectories of all groups drawn."""
    trained: int = 0
    dropped: int = 0
    filtered: int = 0
    moved: int = 0
    """Answers that migrated."""
    trained_tokens: int = 0
    trained_answers: int = 0
    lost_tokens: float = 0.0
    """Sampled, and never trained on: of what redundancy, the ledger or the filter gave up."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Buffer minus version tag, to groups trained on."""

    def take(self, staleness: int, lengths: Sequence[int]) -> None:
        self.trained += 1
        self.staleness[staleness] += 1
        self.trained_answers += len(lengths)
        self.trained_tokens += sum(lengths)
