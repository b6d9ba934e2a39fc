"""The live view of the fleet: a plain object without I/O or clock, used by the coordinator's server.

Promises, by its own accounting:
- a trajectory is never placed on an instance whose version is older than the tag, nor on one that is not SERVING;
- an instance is never given more than it has room for: `max_num_seqs` that run, and a short queue of `1 / QUEUE_SHARE`
  of them that gets a trajectory only when no instance has a free slot;
- an instance that was silent for `SILENCE_S` gets nothing until it reports again;
- a placement that never arrives at its instance stops counting after `DECAY_S`;
- trajectories placed by one call, which are of one group, share an instance while it has room: they have one prompt.

`load` is what the instance reported (running + waiting) plus what was placed on it and not yet received: between two
reports the placements of this process are the only fresh fact.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

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
from .policies.routing.contract import Candidate, RoutingSnapshot
from .policies.routing.registry import ROUTING

SILENCE_S = 5.0
"""An instance that has not reported for so long is taken for gone."""
DECAY_S = 5.0
"""A placement not received by then was lost (a cancelled group, a crashed host) or is slow and soon reported."""

QUEUE_SHARE = 8
"""An engine of 64 slots has 8 requests at hand for those that end next: a slot would otherwise stay empty for the time
of a route call and a poll. No more, since what waits at one engine cannot be served by another."""


@dataclass(slots=True)
class _Instance:
    report: InstanceReport
    seen_at: float
    placed_at: deque[float] = field(default_factory=deque)
    """Times of placements not yet received, oldest first."""

    @property
    def load(self) -> int:
        return self.report.running + self.report.waiting + len(self.placed_at)

    @property
    def free(self) -> int:
        return max(0, self.report.max_num_seqs - self.load)

    @property
    def room(self) -> int:
        """Free slots, and room in the queue."""
        slots = self.report.max_num_seqs
        return max(0, slots + slots // QUEUE_SHARE - self.load)

    def update(self, report: InstanceReport, now: float) -> None:
        if report.run_id != self.report.run_id:
            self.placed_at.clear()
        # A restarted host counts from zero; what waits in its task queue reaches the new process all the same.
        before = self.report.received if report.pid == self.report.pid else 0
        for _ in range(min(max(0, report.received - before), len(self.placed_at))):
            self.placed_at.popleft()
        self.report, self.seen_at = report, now

    def decay(self, now: float) -> None:
        while self.placed_at and now - self.placed_at[0] >= DECAY_S:
            self.placed_at.popleft()


class Fleet:
    """Every instance that reported lately. `now` is any monotonic clock, the same in every call."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._instances: dict[InstanceId, _Instance] = {}
        self._last: dict[str, InstanceId] = {}
        """Of each run, the instance that its last choice fell on."""
        self._chance = chance

    def report(self, report: InstanceReport, now: float) -> None:
        known = self._instances.get(report.instance)
        if known is None:
            self._instances[report.instance] = _Instance(report, now)
        else:
            known.update(report, now)
        self._refresh(now)

    def place(self, request: RouteRequest, now: float) -> RouteResult:
        """Place as many of the trajectories as there is room for now; never waits."""
        self._refresh(now)
        placements: list[Placement] = []
        siblings_on = request.prefer
        for index in request.indices:
            candidates = self._candidates(request)
            if not candidates:
                return RouteResult(placements=tuple(placements), reason=self._why_not(request))
            left = len(request.indices) - len(placements)
            chosen = _beside(siblings_on, candidates) or self._choose(request, candidates, left)
            siblings_on = chosen.instance
            self._instances[chosen.instance].placed_at.append(now)
            placements.append(Placement(index=index, instance=chosen.instance, version=chosen.version))
        return RouteResult(placements=tuple(placements))

    def plan(self, request: DispatchPlanRequest, now: float) -> DispatchPlan:
        """Room for new groups under each served version, newest first. A group larger than an idle instance may start
        there all the same: its trajectories then take turns."""
        self._refresh(now)
        by_version: dict[int, list[_Instance]] = defaultdict(list)
        for instance in self._of_run(request.run_id):
            if instance.report.state is InstanceState.SERVING and instance.report.max_num_seqs > 0:
                by_version[instance.report.version].append(instance)
        rooms = []
        for version in sorted(by_version, reverse=True):
            there = by_version[version]
            groups = sum(instance.room for instance in there) // max(1, request.trajectories_per_group)
            idle = any(instance.load == 0 for instance in there)
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

    def _refresh(self, now: float) -> None:
        silent = [name for name, instance in self._instances.items() if now - instance.seen_at > SILENCE_S]
        for name in silent:
            del self._instances[name]
        for instance in self._instances.values():
            instance.decay(now)
        served = {instance.report.run_id for instance in self._instances.values()}
        for run_id in [run_id for run_id in self._last if run_id not in served]:
            del self._last[run_id]

    def _choose(self, request: RouteRequest, candidates: Sequence[Candidate], left: int) -> Candidate:
        """By the run's policy, among those with slots for all that are left, if there are any."""
        roomy = [one for one in candidates if one.capacity - one.load >= left]
        snapshot = RoutingSnapshot(roomy or candidates, self._last.get(request.run_id), self._chance())
        chosen = ROUTING[request.method](snapshot)
        self._last[request.run_id] = chosen.instance
        return chosen

    def _candidates(self, request: RouteRequest) -> list[Candidate]:
        """Those with a free slot; if there is none, those with room in their queue."""
        able = [
            instance
            for instance in self._of_run(request.run_id)
            if instance.report.state is InstanceState.SERVING and instance.report.version >= request.version_tag
        ]
        return [
            Candidate(instance.report.instance, instance.report.version, instance.load, instance.report.max_num_seqs)
            for instance in [i for i in able if i.free] or [i for i in able if i.room]
        ]

    def _of_run(self, run_id: str) -> Iterable[_Instance]:
        """Sorted by name: policies and reasons are the same whatever the order of the reports."""
        return [instance for _, instance in sorted(self._instances.items()) if instance.report.run_id == run_id]

    def _why_not(self, request: RouteRequest) -> str:
        return self._describe(request.run_id, request.version_tag)

    def _describe(self, run_id: str, tag: int) -> str:
        """`2 instances: rollout-0 pulling (v4), rollout-1 full 256/256`."""
        there = list(self._of_run(run_id))
        if not there:
            return f"no instance of run {run_id} has reported in the last {SILENCE_S:.0f} s"
        states = ", ".join(_state(instance, tag) for instance in there)
        return f"{len(there)} instance{'s' if len(there) > 1 else ''}: {states}"


def _beside(siblings_on: InstanceId | None, candidates: Sequence[Candidate]) -> Candidate | None:
    return next((one for one in candidates if one.instance == siblings_on), None)


def _state(instance: _Instance, tag: int) -> str:
    report = instance.report
    if report.state is not InstanceState.SERVING:
        return f"{report.instance} {report.state} (v{report.version})"
    if report.version < tag:
        return f"{report.instance} at v{report.version}, v{tag} needed"
    if not instance.room:
        return f"{report.instance} full {instance.load}/{report.max_num_seqs}"
    return f"{report.instance} v{report.version}, {instance.load}/{report.max_num_seqs}"
