"""What the sync and migration policies see: the fleet, the route calls that wait, and what the run's ledger admits."""

from collections.abc import Mapping

from ...schemas.ids import InstanceId, RunId
from ...schemas.messages.coordination import SyncRequest
from ...schemas.messages.fleet import FleetInstance
from ...schemas.messages.rollout import DispatchPlanRequest, InstanceState
from .fleet import Fleet
from .policies.load import InstanceLoad, RequestLoad
from .policies.migration.contract import MigrationSnapshot
from .policies.sync.contract import SyncSnapshot
from .waiting import RouteQueue

KEPT_RUNS = 100
"""Of which it is remembered what their ledgers admit: more than ask for room at the same time."""
ADMITS_HOLD_S = 15.0
"""A run that found no room asks again within 8 s. One that does not ask has a full ledger, whatever it said before."""

CHECK_S = 0.1
"""Between two judgements of one question: reports come from every engine several times a second."""

LOST = frozenset({InstanceState.LOST, InstanceState.QUARANTINED, InstanceState.STOPPED})


class View:
    """Without clock or I/O, as the fleet; `now` is its clock's."""

    def __init__(self, fleet: Fleet, queue: RouteQueue) -> None:
        self._fleet, self._queue = fleet, queue
        self._admits: dict[RunId, tuple[float, Mapping[int, int]]] = {}
        """With the time at which the run said so."""
        self._known: dict[InstanceId, tuple[FleetInstance, InstanceLoad]] = {}
        """What was made of a report, until there is a newer one: an engine may have hundreds of requests."""

    def hear(self, request: DispatchPlanRequest, now: float) -> None:
        """The run says what its ledger admits whenever it asks for room."""
        admitted = {room.version: room.groups * request.trajectories_per_group for room in request.admits}
        self._admits.pop(request.run_id, None)
        self._admits[request.run_id] = now, admitted
        if len(self._admits) > KEPT_RUNS:
            del self._admits[next(iter(self._admits))]

    def migration(self, run_id: RunId, now: float) -> MigrationSnapshot:
        return MigrationSnapshot(list(self._loads(run_id, now).values()), self._queued(run_id))

    def sync(self, request: SyncRequest, now: float) -> SyncSnapshot | None:
        """`None`: the instance has not reported to this coordinator yet."""
        loads = self._loads(request.run_id, now)
        if request.instance not in loads:
            return None
        return SyncSnapshot(
            instance=request.instance,
            target=request.version,
            instances=loads,
            mode=request.mode,
            queued=self._queued(request.run_id),
            admits=self._admitted(request.run_id, now),
        )

    def _admitted(self, run_id: RunId, now: float) -> Mapping[int, int]:
        said_at, admitted = self._admits.get(run_id, (now, {}))
        return admitted if now - said_at <= ADMITS_HOLD_S else {}

    def _loads(self, run_id: RunId, now: float) -> dict[InstanceId, InstanceLoad]:
        there = {one.report.instance: one for one in self._fleet.snapshot(now).instances}
        self._known = {
            name: known
            for name, known in self._known.items()
            if name in there and known[0].report is there[name].report and known[0].load == there[name].load
        }
        for name, one in there.items():
            if name not in self._known:
                self._known[name] = one, _load(one)
        return {name: self._known[name][1] for name, one in there.items() if one.report.run_id == run_id}

    def _queued(self, run_id: RunId) -> list[int]:
        return [tag for run, tag, count in self._queue.waiting() if run == run_id for _ in range(count)]


def _load(one: FleetInstance) -> InstanceLoad:
    report = one.report
    lengths = zip(report.requests, report.prompt_tokens, report.generated_tokens, strict=True)
    return InstanceLoad(
        instance=report.instance,
        version=report.version,
        serving=report.state is InstanceState.SERVING,
        lost=report.state in LOST,
        slots=report.max_num_seqs,
        running=report.running,
        waiting=one.load - report.running,
        throughput=report.throughput,
        kv_usage=report.kv_cache_usage,
        kv_capacity=report.kv_capacity_tokens,
        requests=[RequestLoad(*each) for each in lengths],
        pull_s=report.pull_s,
        cost=report.cost,
    )
