"""What one pass of an engine takes, from what a run has stored: how long each piece took for how many tokens, beside
how many others. The line through these points is the cost model."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Piece:
    """A segment."""

    instance: str
    version: int
    tokens: int
    begin: float
    end: float


class Company:
    """How many pieces were in progress on one instance, as a function of time."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        changes = sorted([(piece.begin, 1) for piece in pieces] + [(piece.end, -1) for piece in pieces])
        self._times = [at for at, _ in changes]
        self._counts = list(accumulate(change for _, change in changes))
        areas = (
            count * (after - before)
            for count, before, after in zip(self._counts, self._times, self._times[1:], strict=False)
        )
        self._area = [0.0, *accumulate(areas)]

    def mean(self, begin: float, end: float) -> float:
        return (self._to(end) - self._to(begin)) / (end - begin)

    def _to(self, at: float) -> float:
        """Pieces times seconds until then."""
        i = bisect_right(self._times, at) - 1
        return self._area[i] + self._counts[i] * (at - self._times[i]) if i >= 0 else 0.0


def fitted(pieces: Sequence[Piece]) -> dict[str, float]:
    """`simulate.engine`: seconds per pass = b + k * n, least squares, each piece as often as it has tokens. Prefill is
    part of what the pieces took."""
    of: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.tokens and piece.end > piece.begin:
            of[piece.instance].append(piece)
    points = [
        (company.mean(piece.begin, piece.end), (piece.end - piece.begin) / piece.tokens, piece.tokens)
        for there in of.values()
        for company in [Company(there)]
        for piece in there
    ]
    b, k = _line(points)
    return {
        "other_threshold": 0.0,
        "other_latency_b": b,
        "other_latency_k": k,
        "attn_latency_b": 0.0,
        "attn_latency_k": 0.0,
        "prefill_s_per_token": 0.0,
    }


def _line(points: Sequence[tuple[float, float, int]]) -> tuple[float, float]:
    """Neither part below zero: more company never makes a pass shorter."""
    total = sum(weight for *_, weight in points)
    if not total:
        return 0.001, 0.0
    x = sum(n * weight for n, _, weight in points) / total
    y = sum(latency * weight for _, latency, weight in points) / total
    spread = sum(weight * (n - x) ** 2 for n, _, weight in points)
    together = sum(weight * (n - x) * (latency - y) for n, latency, weight in points)
    k = max(0.0, together / spread) if spread else 0.0
    if y - k * x <= 0:
        return 0.0, y / x
    return y - k * x, k
