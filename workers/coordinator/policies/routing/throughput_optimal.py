"""The waterfall: the instance that gains most throughput, of the first tier in which one gains enough.

For an instance with n requests and t KV tokens, whose throughput by its cost model is T:

    gain      = T(n + 1, t + need) - T(n, t)
    threshold = delta_throughput_threshold * T(1, need)      of the tier's first instance with a cost model

An instance in which the request would not fit the KV cache, or in which others wait for room there, is passed over. The
request waits when no tier has an instance that gains enough; an idle fleet always has one.
"""

from collections.abc import Sequence

from .contract import Candidate, RoutingSnapshot


def throughput_optimal(snapshot: RoutingSnapshot) -> Candidate | None:
    for tier in snapshot.tiers or (snapshot.candidates,):
        chosen = _of_tier(tier, snapshot.need, snapshot.strategy.delta_throughput_threshold)
        if chosen is not None:
            return chosen
    return None


def _of_tier(tier: Sequence[Candidate], need: int, least_share: float) -> Candidate | None:
    """Of equals the first."""
    chosen, best, baseline = None, float("-inf"), None
    for one in tier:
        if one.cost is None:
            continue
        if baseline is None:
            baseline = one.cost.throughput(1, need)
        if one.waiting or not one.holds(need):
            continue
        gain = one.cost.gain(one.load, one.kv_tokens, need)
        if gain > best:
            chosen, best = one, gain
    return chosen if baseline is not None and best >= least_share * baseline else None
