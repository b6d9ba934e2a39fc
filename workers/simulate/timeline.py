"""What the plots show: of every instance how many answers ran when, and when it took up a version; of the trainer when
it trained. Kept for a stretch of the run only, since a long one has millions of changes."""

from dataclasses import dataclass, field

SHOWN_STEPS = 12
"""A stretch of so many steps, in the middle of the run: there the beginning is forgotten and the end is not felt."""


@dataclass
class Timeline:
    first: int
    """The first step shown."""
    last: int
    instances: int
    spans: list[tuple[float, float, int]] = field(default_factory=list)
    """Begin and end of each step shown, and its number."""
    batches: list[list[tuple[float, int]]] = field(default_factory=list)
    """Of each instance: since when how many answers have run."""
    syncs: list[list[tuple[float, float]]] = field(default_factory=list)
    version: int = 0
    """The newest published."""

    def __post_init__(self) -> None:
        self.batches = [[(0.0, 0)] for _ in range(self.instances)]
        self.syncs = [[] for _ in range(self.instances)]

    @classmethod
    def of_run(cls, steps: int, instances: int) -> "Timeline":
        first = max(0, (steps - SHOWN_STEPS) // 2)
        return cls(first, min(steps, first + SHOWN_STEPS) - 1, instances)

    @property
    def begin(self) -> float:
        return self.spans[0][0] if self.spans else 0.0

    @property
    def end(self) -> float:
        return self.spans[-1][1] if self.spans else 0.0

    def running(self, instance: int, now: float, running: int) -> None:
        """The value before the stretch is kept up to date, so that the stretch begins with it."""
        if self.version > self.last:
            return
        known = self.batches[instance]
        if self.version < self.first:
            known[0] = (now, running)
        elif known[-1][1] != running:
            known.append((now, running))

    def synced(self, instance: int, begin: float, end: float) -> None:
        if self.first <= self.version <= self.last:
            self.syncs[instance].append((begin, end))

    def trained(self, step: int, begin: float, end: float) -> None:
        self.version = step + 1
        if self.first <= step <= self.last:
            self.spans.append((begin, end, step))
