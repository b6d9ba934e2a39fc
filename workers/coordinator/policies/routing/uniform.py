"""Any, with equal probability."""

from .contract import Candidate, RoutingSnapshot


def uniform(snapshot: RoutingSnapshot) -> Candidate:
    return snapshot.candidates[int(snapshot.chance * len(snapshot.candidates))]
