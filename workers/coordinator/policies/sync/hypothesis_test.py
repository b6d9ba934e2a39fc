"""When the engine would give more tokens by syncing now than by going on until what it runs has ended.

Over the time H in which its n requests, of t tokens in the KV cache, would end, with f(n, t) the tokens per second and
s(n, t) the seconds of a step by the engine's cost model:

    remaining    of a request: as many tokens as it has sampled, at least one; R is their sum, r the largest
    H            = r * s(n, t)
    going on     = R, or H * f(N', t') if new work is admitted at the version that it serves
    interruption = seconds of the last pull + s(t, 0) unless the requests stay in the engine
    syncing now  = max(0, H - interruption) * f(N, t'')

N and N' are the requests it would run with the new work that is admitted under either version, at most its slots, each
as long as its requests are on average. `s(t, 0)` is the prefill that continuing the interrupted requests costs: a step
that takes up t tokens. That a request has as much before it as behind it holds on average for the long tail of lengths
(a power law) that makes waiting expensive. A drain interrupts nothing, so it begins once no new work is admitted
at the version served.
"""

from collections.abc import Iterable

from .....schemas.config.sync_and_mig import SyncMode
from .....schemas.cost_model import CostModel
from .contract import SyncSnapshot, SyncVerdict


def hypothesis_test(snapshot: SyncSnapshot) -> SyncVerdict:
    own, cost = snapshot.own, snapshot.own.cost
    if not own.requests_at_hand:
        return SyncVerdict(True, "it has nothing to do")
    before, after = _work(snapshot, own.version), _work(snapshot, snapshot.target)
    if snapshot.mode is SyncMode.DRAIN:
        return SyncVerdict(not before, f"room for {before} more trajectories at v{own.version}")
    if cost is None or not own.requests:
        return SyncVerdict(False, "it has not told its cost model and requests yet")
    horizon_s, remaining = _left([request.sampled for request in own.requests], cost, _kv(snapshot))
    on = _tokens(snapshot, cost, before, horizon_s) if before else float(remaining)
    interruption_s = own.pull_s + (0.0 if snapshot.mode is SyncMode.IN_PLACE else cost.latency(_kv(snapshot), 0))
    now = _tokens(snapshot, cost, after, max(0.0, horizon_s - interruption_s))
    return SyncVerdict(now > on, f"in {horizon_s:.1f} s about {now:.0f} tokens by syncing now, {on:.0f} by going on")


def _work(snapshot: SyncSnapshot, version: int) -> int:
    """Trajectories that it could begin with at this version."""
    return sum(tag <= version for tag in snapshot.queued) + snapshot.admits.get(version, 0)


def _kv(snapshot: SyncSnapshot) -> int:
    return sum(request.tokens for request in snapshot.own.requests)


def _left(sampled: Iterable[int], cost: CostModel, tokens: int) -> tuple[float, int]:
    """Seconds until the last has ended, and the tokens of all until then."""
    remaining = [max(1, count) for count in sampled]
    return max(remaining) * cost.latency(len(remaining), tokens), sum(remaining)


def _tokens(snapshot: SyncSnapshot, cost: CostModel, more: int, seconds: float) -> float:
    """Sampled with so many trajectories more."""
    own = snapshot.own
    count = min(own.slots, own.requests_at_hand + more)
    return seconds * cost.throughput(count, count * _kv(snapshot) / len(own.requests))
