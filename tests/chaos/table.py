"""The result of a chaos run: one row per part and point, and the totals."""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .driver import Injection
from .tokens import Again

UNKNOWN = ("-", "orderly interruption or several at once")
"""Where tokens were sampled again and no single injection explains it."""
ATTRIBUTION_S = 1.0
"""A host's last line may be so much younger than its end."""


@dataclass
class Row:
    kind: str
    point: str
    injections: int = 0
    works_median_s: float = 0.0
    recovered_median_s: float = 0.0
    recovered_p99_s: float = 0.0
    again_total: int = 0
    again_max: int = 0
    """Of one trajectory."""


@dataclass
class Outcome:
    """What a chaos run leaves behind."""

    seed: int
    injections: list[Injection]
    seconds: float
    steps: int
    trained_trajectories: int
    groups: dict[str, int]
    """By status."""
    sampled: int
    again: list[Again]
    flush_tokens: int
    audit: str
    quarantines: dict[str, int] = field(default_factory=dict)
    """Returns from quarantine, by instance."""
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = rows(self.injections, self.again)

    @property
    def again_max(self) -> int:
        return max((item.tokens for item in self.again), default=0)

    def markdown(self) -> str:
        head = (
            "| part | point | injections | works again, median | recovered, median | recovered, p99 |"
            " tokens again | most of one trajectory |\n|---|---|---|---|---|---|---|---|\n"
        )
        lines = [
            f"| {r.kind} | {r.point} | {r.injections} | {r.works_median_s:.1f} s | {r.recovered_median_s:.1f} s |"
            f" {r.recovered_p99_s:.1f} s | {r.again_total} | {r.again_max} |"
            for r in [*self.rows, total(self.injections, self.again)]
        ]
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(self.groups.items()))
        lost = sum(count for status, count in self.groups.items() if status in ("failed", "deadline"))
        again = sum(item.tokens for item in self.again)
        facts = [
            f"- seed {self.seed}: {len(self.injections)} injections in {self.seconds:.0f} s, {self.steps} steps,"
            f" {self.trained_trajectories} trajectories trained",
            f"- groups: {statuses}; lost: {lost}",
            f"- tokens sampled: {self.sampled}, again: {again}, most of one trajectory at once: {self.again_max}"
            f" (flush_tokens {self.flush_tokens})",
            "- back from quarantine: " + ", ".join(f"{name} {times}x" for name, times in self.quarantines.items()),
            f"- audit: {self.audit}",
        ]
        return head + "\n".join(lines) + "\n\n" + "\n".join(facts) + "\n"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(self.markdown())
        (folder / "table.json").write_text(json.dumps(self.as_json(), indent=1))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def rows(injections: Sequence[Injection], again: Sequence[Again]) -> list[Row]:
    """By part and point, in the order of their names."""
    found: dict[tuple[str, str], list[Injection]] = defaultdict(list)
    repeated: dict[tuple[str, str], list[Again]] = defaultdict(list)
    for injection in injections:
        found[injection.kind, injection.point].append(injection)
    for item in again:
        repeated[_cause(item, injections)].append(item)
    return [_row(*key, found.get(key, []), repeated.get(key, [])) for key in sorted({*found, *repeated})]


def total(injections: Sequence[Injection], again: Sequence[Again]) -> Row:
    return _row("all", "all", injections, again)


def _row(kind: str, point: str, injections: Sequence[Injection], again: Sequence[Again]) -> Row:
    works = sorted(item.works_s or 0.0 for item in injections) or [0.0]
    recovered = sorted(item.recovered_s or 0.0 for item in injections) or [0.0]
    return Row(
        kind,
        point,
        len(injections),
        statistics.median(works),
        statistics.median(recovered),
        recovered[min(len(recovered) - 1, int(0.99 * len(recovered)))],
        sum(item.tokens for item in again),
        max((item.tokens for item in again), default=0),
    )


def _cause(item: Again, injections: Sequence[Injection]) -> tuple[str, str]:
    """The newest injection between the last token of the first call and the first of the second; one on the host of
    the first call, if there is one."""
    between = [i for i in injections if item.lost_at - ATTRIBUTION_S <= i.at <= item.continued_at]
    own = [i for i in between if i.part == item.instance] or between
    if not own:
        return UNKNOWN
    newest = max(own, key=lambda i: i.at)
    return newest.kind, newest.point
