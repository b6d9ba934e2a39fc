"""Requests on their way from a busy instance to a starved one.

Promises: of a run one migration is under way at a time, until all of its requests are placed again or `DECAY_S` has
passed, so that the same gap is not filled twice; they are offered to the receiver first. A lost command, or requests
that ended before it came, change nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...schemas.ids import InstanceId, RunId, engine_request, trajectory_of
from ...schemas.messages.coordination import HostCommand, HostCommandKind
from ...schemas.messages.rollout import InstanceReport, RouteRequest, RouteResult
from .instance import DECAY_S
from .policies.migration.contract import Migration
from .policies.migration.registry import migration_policy
from .view import CHECK_S, View

Send = Callable[[InstanceId, HostCommand], bool]
"""To an instance's host; whether one is attached."""


@dataclass(slots=True)
class _UnderWay:
    migration: Migration
    since: float
    left: set[str]
    """Trajectories that are not placed again yet."""


class Migrations:
    """`now`: as in `Fleet`."""

    def __init__(self, view: View, send: Send) -> None:
        self._view, self._send = view, send
        self._under_way: dict[RunId, _UnderWay] = {}
        self._looked_at: dict[RunId, float] = {}

    def look(self, report: InstanceReport, now: float) -> None:
        """After each report: begin a migration if the run's policy finds one."""
        policy = migration_policy(report.migration) if report.migration else None
        run_id = RunId(report.run_id)
        if policy is None or now - self._looked_at.get(run_id, -CHECK_S) < CHECK_S or self._busy(run_id, now):
            return
        self._looked_at = {run: then for run, then in self._looked_at.items() if now - then < DECAY_S} | {run_id: now}
        found = policy(self._view.migration(run_id, now))
        if found is None:
            return
        command = HostCommand(
            run_id=run_id,
            kind=HostCommandKind.INTERRUPT,
            requests=tuple(found.requests),
            reason=f"to {found.receiver}: {found.reason}",
        )
        if self._send(found.donor, command):
            self._under_way[run_id] = _UnderWay(found, now, set(map(trajectory_of, found.requests)))

    def steer(self, request: RouteRequest) -> RouteRequest:
        """What was moved prefers the receiver, and not the donor, however much of its prefix that has."""
        under_way = self._under_way.get(request.run_id)
        if under_way is None or under_way.left.isdisjoint(_named(request, request.indices)):
            return request
        return request.model_copy(update={"prefer": under_way.migration.receiver})

    def placed(self, request: RouteRequest, result: RouteResult) -> None:
        under_way = self._under_way.get(request.run_id)
        if under_way is not None:
            under_way.left -= _named(request, (one.index for one in result.placements))

    def _busy(self, run_id: RunId, now: float) -> bool:
        under_way = self._under_way.get(run_id)
        if under_way is not None and (not under_way.left or now - under_way.since >= DECAY_S):
            del self._under_way[run_id]
        return run_id in self._under_way


def _named(request: RouteRequest, indices: Iterable[int]) -> set[str]:
    return {trajectory_of(engine_request(request.group_id, index, 0)) for index in indices}
