"""The instance that has the longest prefix of the request in its KV cache, of equals the least loaded; the least loaded
of all while loads are out of balance, or where no instance has enough of the request.

What an instance has is an estimate (`prefixes.py`): the prefixes that were routed to it at its version.
"""

from collections.abc import Sequence

from .....schemas.config.routing import CacheAwarePolicy
from .contract import Candidate, RoutingSnapshot


def cache_aware(snapshot: RoutingSnapshot) -> Candidate:
    return best_overlap(snapshot, snapshot.candidates)


def best_overlap(snapshot: RoutingSnapshot, candidates: Sequence[Candidate]) -> Candidate:
    settings = snapshot.strategy.cache_aware_policy
    if not out_of_balance(candidates, settings):
        longest = max(candidates, key=lambda one: (snapshot.overlap.get(one.instance, 0), -one.load))
        if snapshot.overlap.get(longest.instance, 0) > settings.cache_threshold * snapshot.tokens:
            return longest
    return min(candidates, key=lambda one: one.load)


def out_of_balance(candidates: Sequence[Candidate], settings: CacheAwarePolicy) -> bool:
    usages, loads = [one.kv_usage for one in candidates], [one.load for one in candidates]
    overloaded = max(usages) > settings.overload_token_usage_threshold < 1
    apart = max(usages) - min(usages) > settings.balance_token_usage_threshold < 1
    uneven = max(loads) - min(loads) > settings.balance_abs_threshold
    return overloaded or apart or (uneven and max(loads) > settings.balance_rel_threshold * min(loads))
