"""The stages between a request and its policy: which instances it may go to, in which order. Pure functions.

Promise, whatever is reported: an instance that is not SERVING, is older than the request's tag, or has no room is never
among them. In the order of the stages:

1. available: the instance serves;
2. version: at the request's tag or newer (L1);
3. group pin (`enable_group_sticky`): the instance of the request's group, while it passes the first two;
4. admission: a slot is free; where none is anywhere, there is room in the short queue; nobody waits for KV cache in its
   engine (`admission_reject_on_waiting`);
5. order: by version or not (`candidate_sort_indicator`), then by name.

The slot in the ledger needs no stage of its own: the run takes it when it starts a group, with the tag, and it holds
for all of the group's requests wherever they go. KV capacity is looked at by the policies that know of it.
"""

from collections.abc import Sequence
from itertools import groupby

from ...schemas.config import CandidateOrder, RoutingStrategy
from ...schemas.ids import InstanceId
from .policies.routing.contract import Candidate

Tiers = Sequence[Sequence[Candidate]]


def select(instances: Sequence[Candidate], tag: int, strategy: RoutingStrategy, pin: InstanceId | None = None) -> Tiers:
    """Tiers of equal rank, the first to be preferred; empty where the request has to wait. `instances` are sorted by
    name."""
    return ordered(admitted(acceptable(instances, tag, pin), strategy), strategy)


def acceptable(instances: Sequence[Candidate], tag: int, pin: InstanceId | None = None) -> Sequence[Candidate]:
    """What may serve the request, with room or without."""
    able = [one for one in instances if one.serving and one.version >= tag]
    return [one for one in able if one.instance == pin] or able if pin is not None else able


def willing(able: Sequence[Candidate], strategy: RoutingStrategy) -> Sequence[Candidate]:
    """What takes more requests, with a free slot or without."""
    return [one for one in able if not one.waiting] if strategy.admission_reject_on_waiting else able


def admitted(able: Sequence[Candidate], strategy: RoutingStrategy) -> Sequence[Candidate]:
    able = willing(able, strategy)
    return [one for one in able if one.free] or [one for one in able if one.room]


def ordered(candidates: Sequence[Candidate], strategy: RoutingStrategy) -> Tiers:
    if not candidates:
        return ()
    if strategy.candidate_sort_indicator is CandidateOrder.RESERVE_CAPABILITY:
        return (candidates,)
    by_version = sorted(candidates, key=lambda one: one.version)
    return [list(tier) for _, tier in groupby(by_version, key=lambda one: one.version)]
