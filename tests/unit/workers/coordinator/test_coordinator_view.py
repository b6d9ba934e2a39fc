"""What sync policies see of a run."""

from psrl.schemas.config.sync_and_mig import SyncAndMigStrategy, SyncMode
from psrl.schemas.ids import InstanceId, RunId
from psrl.schemas.messages.coordination import SyncRequest
from psrl.schemas.messages.rollout import DispatchPlanRequest, DispatchRoom, InstanceReport, InstanceState
from psrl.workers.coordinator.fleet import Fleet
from psrl.workers.coordinator.view import ADMITS_HOLD_S, View
from psrl.workers.coordinator.waiting import RouteQueue

RUN, ONE = RunId("run"), InstanceId("rollout-0")


def test_what_a_ledger_admitted_holds_no_longer_once_its_run_has_stopped_asking() -> None:
    """A full ledger has nothing to ask, and a sync that is said to cost new work would wait for none."""
    fleet = Fleet()
    view = View(fleet, RouteQueue(fleet))
    rooms = (DispatchRoom(version=3, groups=2),)
    view.hear(DispatchPlanRequest(run_id=RUN, trajectories_per_group=4, admits=rooms), now=100.0)
    request = SyncRequest(run_id=RUN, instance=ONE, version=4, strategy=SyncAndMigStrategy(), mode=SyncMode.INTERRUPT)
    seen = {}
    for now in (100.0, 100.0 + ADMITS_HOLD_S, 101.0 + ADMITS_HOLD_S):
        fleet.report(InstanceReport(instance=ONE, run_id=RUN, state=InstanceState.SERVING, version=3), now)
        snapshot = view.sync(request, now)
        assert snapshot is not None
        seen[now - 100.0] = snapshot.admits
    assert seen == {0.0: {3: 8}, ADMITS_HOLD_S: {3: 8}, 1 + ADMITS_HOLD_S: {}}
