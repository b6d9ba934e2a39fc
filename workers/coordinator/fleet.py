"""The live view of the fleet: a plain object without I/O or clock, used by the coordinator's server and the simulator.

Promises, by its own accounting:
- a trajectory is never placed on an instance whose version is older than the tag, nor on one that is not SERVING;
- an instance is never given more than it has room for: `max_num_seqs` that run, and a short queue of `1 / QUEUE_SHARE`
  of them that gets a trajectory only when no instance has a free slot;
- an instance that was silent for `SILENCE_S` gets nothing until it reports again;
- a placement that never arrives at its instance stops counting after `DECAY_S`;
- trajectories placed by one call, which are of one group, share an instance while it has room and the policy takes it:
  they have one prompt.
"""

import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable

from ...schemas.config import RoutingMethod, RoutingStrategy
from ...schemas.ids import InstanceId
from ...schemas.messages.fleet import FleetInstance, FleetSnapshot
from ...schemas.messages.rollout import (
    DispatchPlan,
    DispatchPlanRequest,
    DispatchRoom,
    InstanceReport,
    InstanceState,
    Placement,
    RouteRequest,
    RouteResult,
)
from .instance import DECAY_S, SILENCE_S, Instance
from .policies.routing.contract import Candidate, RoutingSnapshot
from .policies.routing.registry import ROUTING, WAITS_FOR
from .policies.routing.throughput_optimal_with_budget import expected
from .selection import Tiers, select, willing

KEPT_PINS = 10_000
"""Groups whose instance is remembered: more than live at once in any run."""


class Fleet:
    """Every instance that reported lately. `now` is any monotonic clock, the same in every call."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._instances: dict[InstanceId, Instance] = {}
        self._by_run: dict[str, list[Instance]] = {}
        """Sorted by name: policies and reasons are the same whatever the order of the reports."""
        self._next_change = float("inf")
        """No instance is silent, and no placement has decayed, before."""
        self._last: dict[str, InstanceId] = {}
        """Of each run, the instance that its policy chose last. One that is only kept to is no choice: round robin
        would begin again after it each time, and never come to those beyond the next."""
        self._pins: OrderedDict[tuple[str, str], InstanceId] = OrderedDict()
        """Of groups that stick to one instance."""
        self._chance = chance
        self.placed: Counter[str] = Counter()
        """Of each run: trajectories placed, for metrics."""
        self.methods: dict[str, RoutingMethod] = {}
        """Of each run that has routed, for the recorder."""

    def report(self, report: InstanceReport, now: float) -> None:
        known = self._instances.get(report.instance)
        served = known.report.run_id if known is not None else None
        if known is None:
            known = self._instances[report.instance] = Instance(report, now)
        known.update(report, now)
        if served != report.run_id:
            self._sort()
        self._next_change = min(self._next_change, now + SILENCE_S)
        self._refresh(now)

    def place(self, request: RouteRequest, now: float) -> RouteResult:
        """Place as many of the trajectories as there is room for now; never waits."""
        self._refresh(now)
        placements: list[Placement] = []
        siblings_on = request.prefer
        for number, index in enumerate(request.indices):
            chosen = self._choose(request, number, siblings_on)
            if chosen is None:
                return RouteResult(placements=tuple(placements), reason=self._why_not(request))
            siblings_on = chosen.instance
            self._put(request, number, chosen, now)
            placements.append(Placement(index=index, instance=chosen.instance, version=chosen.version))
        return RouteResult(placements=tuple(placements))

    def why_not(self, request: RouteRequest, now: float) -> str:
        """What a request that found no instance waits for, for people."""
        self._refresh(now)
        return self._why_not(request)

    def is_pinned(self, request: RouteRequest) -> bool:
        """Whether it may go to one instance only, its group's."""
        return self._pin_of(request) is not None

    def plan(self, request: DispatchPlanRequest, now: float) -> DispatchPlan:
        """Room for new groups under each served version, newest first, where requests of theirs would be admitted. A
        group larger than an idle instance may start there all the same: its trajectories then take turns."""
        self._refresh(now)
        by_version: dict[int, list[Candidate]] = defaultdict(list)
        instances = [instance.candidate() for instance in self._by_run.get(request.run_id, ())]
        for one in willing([each for each in instances if each.serving and each.capacity > 0], request.strategy):
            by_version[one.version].append(one)
        rooms = []
        for version in sorted(by_version, reverse=True):
            there = by_version[version]
            groups = sum(one.room for one in there) // max(1, request.trajectories_per_group)
            idle = any(one.load == 0 for one in there)
            if groups or idle:
                rooms.append(DispatchRoom(version=version, groups=max(groups, 1)))
        reason = "" if rooms else self._describe(request.run_id, tag=0)
        return DispatchPlan(rooms=tuple(rooms), reason=reason)

    def snapshot(self, now: float) -> FleetSnapshot:
        self._refresh(now)
        return FleetSnapshot(
            instances=tuple(
                FleetInstance(report=instance.report, load=instance.load, age_s=now - instance.seen_at)
                for _, instance in sorted(self._instances.items())
            )
        )

    # --- what time changes -------------------------------------------------------------------------------------------

    def _refresh(self, now: float) -> None:
        if now < self._next_change:
            return
        silent = [name for name, instance in self._instances.items() if now - instance.seen_at > SILENCE_S]
        for name in silent:
            del self._instances[name]
        if silent:
            self._sort()
        for instance in self._instances.values():
            instance.decay(now)
        self._next_change = min((one.next_change for one in self._instances.values()), default=float("inf"))

    def _sort(self) -> None:
        """After an instance has come, left or begun to serve another run."""
        self._by_run = defaultdict(list)
        for _, instance in sorted(self._instances.items()):
            self._by_run[instance.report.run_id].append(instance)
        for of_runs in (self._last, self.placed, self.methods):
            for run_id in [run_id for run_id in of_runs if run_id not in self._by_run]:
                del of_runs[run_id]

    # --- choosing ----------------------------------------------------------------------------------------------------

    def _choose(self, request: RouteRequest, number: int, siblings_on: InstanceId | None) -> Candidate | None:
        """By the run's policy: the instance of its siblings, if it takes that; else one of those with slots for all
        that are left; else any. `number`: of the trajectory within the request."""
        tiers = self._tiers(request)
        if not tiers:
            return None
        left = len(request.indices) - number
        beside = [one for tier in tiers for one in tier if one.instance == siblings_on]
        roomy = [[one for one in tier if one.free >= left] for tier in tiers]
        if chosen := self._ask(request, number, [beside] if beside else []):
            return chosen
        for narrowed in (roomy, tiers):
            if chosen := self._ask(request, number, [tier for tier in narrowed if tier]):
                self._last[request.run_id] = chosen.instance
                return chosen
        return None

    def _ask(self, request: RouteRequest, number: int, tiers: Tiers) -> Candidate | None:
        if not tiers:
            return None
        snapshot = RoutingSnapshot(
            candidates=[one for tier in tiers for one in tier],
            last=self._last.get(request.run_id),
            chance=self._chance(),
            tiers=tiers,
            tokens=request.tokens[number] if request.tokens else 1,
            need=_need(request, number),
            overlap=self._overlap(request) if request.blocks else {},
            strategy=request.strategy,
        )
        return ROUTING[request.strategy.method](snapshot)

    def _put(self, request: RouteRequest, number: int, chosen: Candidate, now: float) -> None:
        instance = self._instances[chosen.instance]
        instance.place(now, _need(request, number) if request.tokens else 0)
        self._next_change = min(self._next_change, now + DECAY_S)
        self.placed[request.run_id] += 1
        self.methods[request.run_id] = request.strategy.method
        if request.blocks:
            settings = request.strategy.cache_aware_policy
            instance.prefixes.add(request.blocks, settings.max_tree_size // settings.block_size)
        if request.strategy.enable_group_sticky:
            self._pin(request, chosen.instance)

    def _tiers(self, request: RouteRequest) -> Tiers:
        budget = _budget(request.strategy)
        instances = [one.candidate(budget) for one in self._by_run.get(request.run_id, ())]
        return select(instances, request.version_tag, request.strategy, self._pin_of(request))

    def _overlap(self, request: RouteRequest) -> dict[InstanceId, int]:
        size = request.strategy.cache_aware_policy.block_size
        return {
            one.report.instance: size * one.prefixes.shared(request.blocks)
            for one in self._by_run.get(request.run_id, ())
        }

    def _pin(self, request: RouteRequest, instance: InstanceId) -> None:
        key = (request.run_id, request.group_id)
        self._pins[key] = instance
        self._pins.move_to_end(key)
        if len(self._pins) > KEPT_PINS:
            self._pins.popitem(last=False)

    def _pin_of(self, request: RouteRequest) -> InstanceId | None:
        if not request.strategy.enable_group_sticky:
            return None
        return self._pins.get((request.run_id, request.group_id))

    # --- reasons -----------------------------------------------------------------------------------------------------

    def _why_not(self, request: RouteRequest) -> str:
        there = self._describe(request.run_id, request.version_tag)
        waits_for = WAITS_FOR.get(request.strategy.method)
        if waits_for and self._tiers(request):
            return f"{request.strategy.method} waits for {waits_for}; {there}"
        pin = self._pin_of(request)
        return f"the group waits for {pin} (enable_group_sticky); {there}" if pin else there

    def _describe(self, run_id: str, tag: int) -> str:
        """`2 instances: rollout-0 pulling (v4), rollout-1 full 256/256`."""
        there = self._by_run.get(run_id)
        if not there:
            return f"no instance of run {run_id} has reported in the last {SILENCE_S:.0f} s"
        states = ", ".join(_state(instance, tag) for instance in there)
        return f"{len(there)} instance{'s' if len(there) > 1 else ''}: {states}"


def _budget(strategy: RoutingStrategy) -> int:
    """Of the responses already in engines; 0: they count as they are."""
    return strategy.request_budget if strategy.method is RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET else 0


def _need(request: RouteRequest, number: int) -> int:
    if not request.tokens:
        return 1
    tokens, budget = request.tokens[number], _budget(request.strategy)
    if not budget:
        return max(1, tokens)
    sampled = request.sampled[number] if request.sampled else 0
    return expected(tokens - sampled, sampled, budget)


def _state(instance: Instance, tag: int) -> str:
    report, one = instance.report, instance.candidate()
    if report.state is not InstanceState.SERVING:
        return f"{report.instance} {report.state} (v{report.version})"
    if report.version < tag:
        return f"{report.instance} at v{report.version}, v{tag} needed"
    if not one.room:
        return f"{report.instance} full {one.load}/{report.max_num_seqs}"
    if one.waiting:
        return f"{report.instance} v{report.version}, {one.waiting} wait for KV cache"
    return f"{report.instance} v{report.version}, {one.load}/{report.max_num_seqs}"
