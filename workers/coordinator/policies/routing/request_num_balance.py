"""The fewest active requests; among equals the first by name."""

from .contract import Candidate, RoutingSnapshot


def request_num_balance(snapshot: RoutingSnapshot) -> Candidate:
    return min(snapshot.candidates, key=lambda candidate: candidate.load)
