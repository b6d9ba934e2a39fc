"""The next by name after the one chosen before, so that an instance that leaves or joins breaks nothing."""

from .contract import Candidate, RoutingSnapshot


def round_robin(snapshot: RoutingSnapshot) -> Candidate:
    last = snapshot.last or ""
    return min(snapshot.candidates, key=lambda one: (one.instance <= last, one.instance))
