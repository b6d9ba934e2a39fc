"""Once a minute a run looks after every workflow it waits on, since none of them can tell of its own sudden end (L11).

Owned by `TrainingRun`; runs as one task beside its main loop. Promises: a group, an instance or a validation round that
ended unheard is settled within a minute; a group past its deadline is given up and replaced; a group that has left is
seen off whatever cut that short before. The last moment is carried: buffers may be shorter than a minute.
"""

from collections.abc import Callable
from contextlib import suppress

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import RunId
    from ...schemas.messages.run import CollectReports, GroupReport
    from ...schemas.status import GroupStatus
    from ..calls import settings
    from ..calls import table as calls
    from .instances import Instances
    from .seeing_off import SeeingOff
    from .state import RunState
    from .validation import Validation


def interval_s(rare: bool) -> float:
    """Between two sweeps. Shorter than an absence, or each would be taken for the end of one, and no group for late."""
    return settings.SWEEP.total_seconds() * (settings.SWEEPS_SAVED if rare else 1)


class Sweep:
    def __init__(
        self,
        run_id: RunId,
        state: RunState,
        *,
        instances: Instances,
        validation: Validation,
        seeing_off: SeeingOff,
        report: Callable[[GroupReport], None],
        wake: Callable[[], None],
        stuck: Callable[[], bool],
        rare: Callable[[], bool],
    ) -> None:
        """`report` takes a report that did not arrive; `wake`: there is room again; `stuck`: nothing is in flight and
        nothing can be started; `rare`: the history has hardly any room left."""
        self._run_id, self._state = run_id, state
        self._instances, self._validation, self._seeing_off = instances, validation, seeing_off
        self._report, self._wake, self._stuck, self._rare = report, wake, stuck, rare
        self._busy = self._ended = False

    @property
    def at_rest(self) -> bool:
        return not self._busy

    async def run(self) -> None:
        self._ended = False
        while not self._ended:
            await self._until_due()
            if not self._ended:
                self._busy = True
                await self._once()
                self._busy = False

    def end(self) -> None:
        """Make no other sweep. Cancelling the task is not enough: a wait that ends at the same moment swallows it."""
        self._ended = True

    async def _until_due(self) -> None:
        """The first minute of a run counts from its first moment here."""
        state = self._state
        state.swept_at = state.swept_at or workflow.time()
        left_s = state.swept_at + interval_s(self._rare()) - workflow.time()
        if left_s > 0:
            with suppress(TimeoutError):
                await workflow.wait_condition(lambda: state.fleet.missed, timeout=left_s)

    async def _once(self) -> None:
        state, now = self._state, workflow.time()
        since_s, state.swept_at = now - state.swept_at, now
        state.seen(now)
        found = await calls.collect_reports(
            CollectReports(
                run_id=self._run_id,
                groups=state.groups.older_than(settings.UNDERWAY.total_seconds(), now),
                instances=state.fleet.living,
                evaluations=tuple(state.rounds.open),
            ),
            summary="check on groups, instances and validation",
        )
        state.fleet.missed = False
        for report in found.reports:
            self._report(report)
        await self._instances.settle(found.instances)
        await self._validation.settle(found.evaluations)
        self._give_up_the_late()
        await self._seeing_off.all()
        state.stuck_s = state.stuck_s + min(since_s, settings.ABSENCE.total_seconds()) if self._stuck() else 0.0

    def _give_up_the_late(self) -> None:
        patience_s = self._state.config.psrl.group_timeout_s + settings.SWEEP.total_seconds()
        if late := self._state.groups.older_than(patience_s, workflow.time()):
            self._state.groups.give_up(late, GroupStatus.DEADLINE)
            self._wake()
