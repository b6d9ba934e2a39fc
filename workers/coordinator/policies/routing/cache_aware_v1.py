"""`cache_aware` among the instances whose KV cache has room for what they do not have of the request, and in which no
request waits for such room. The request waits when there is none."""

from .cache_aware import best_overlap
from .contract import Candidate, RoutingSnapshot


def cache_aware_v1(snapshot: RoutingSnapshot) -> Candidate | None:
    times = snapshot.strategy.cache_aware_policy.kv_capacity_threshold
    able = [
        one
        for one in snapshot.candidates
        if not one.waiting and one.holds(snapshot.tokens - snapshot.overlap.get(one.instance, 0), times)
    ]
    return best_overlap(snapshot, able) if able else None
