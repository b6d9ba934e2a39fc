"""Which tokens were sampled twice: what the hosts received, call by call, laid over each other (L6).

A host appends a line per chunk to a file that outlives it. A call that goes on from an earlier place than the call
before it had reached samples those tokens again.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .triggers import folder


@dataclass
class Call:
    """One generate call of one trajectory."""

    instance: str
    began: float
    ended: float
    first: int
    reached: int
    """Tokens of the turn, this call's included."""


@dataclass(frozen=True)
class Again:
    """Tokens of one turn that two calls sampled."""

    turn: str
    """Its workflow, trajectory and number: `000001/0.0`. Another attempt at an episode has a workflow of its own."""
    instance: str
    """Where the first call ran."""
    lost_at: float
    continued_at: float
    tokens: int


def sampled_again(home: Path) -> tuple[int, list[Again]]:
    """All tokens the hosts received, and those among them that were sampled before."""
    calls: dict[str, dict[int, Call]] = defaultdict(dict)
    total = 0
    for instance, at, turn, fence, first, count in _lines(home):
        total += count
        call = calls[turn].setdefault(fence, Call(instance, at, at, first, first))
        call.ended, call.reached = at, max(call.reached, first + count)
    again = []
    for turn, by_fence in calls.items():
        ordered = [by_fence[fence] for fence in sorted(by_fence)]
        reached = 0
        for number, call in enumerate(ordered):
            if call.first < reached:
                before = ordered[number - 1]
                again.append(Again(turn, before.instance, before.ended, call.began, reached - call.first))
            reached = max(reached, call.reached)
    return total, again


def _lines(home: Path) -> Iterator[tuple[str, float, str, int, int, int]]:
    for file in sorted((folder(home) / "sampled").glob("*")):
        instance = file.name.rpartition("-")[0]
        for line in file.read_text().splitlines():
            at, turn, fence, first, count = line.split()
            yield instance, float(at), turn, int(fence), int(first), int(count)
