"""Keeps the rollout instances busy: reserves, draws and starts groups in bounded waves whenever something changed.

Owned by `TrainingRun`; runs as one task beside its main loop. Promises: no group is started that the ledger has not
admitted, and none that the rest of the run cannot use; training never waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId, RunId, Version, training_group
    from ...schemas.messages.data import DrawRequest
    from ...schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, DispatchRoom
    from ...schemas.messages.run import RolloutSettings, StartGroup, StartGroups
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.lifetime import ran_out
    from .dispatch import Wave, groups_still_needed, plan_wave
    from .faults import never_came_up, not_in_time
    from .state import RunState


@dataclass(frozen=True)
class Idle:
    """Why nothing new is started, for people."""

    reason: str = ""
    asked_at: float | None = None
    """When the coordinator was asked for room and has not answered yet."""


class Dispatcher:
    def __init__(self, run_id: RunId, state: RunState, held: Callable[[], bool]) -> None:
        """`held`: nothing new may be started now."""
        self.idle = Idle()
        self.refused = False
        """Groups are needed, and the coordinator had no room for any."""
        self._run_id, self._state, self._held = run_id, state, held
        self._wanted = True
        self._in_wave = self._ended = False
        self._patience_s = settings.DISPATCH_RETRY_S / 2

    def wake(self) -> None:
        """Something changed: a group left, a version was published, an instance serves. The coordinator may hear of it
        a moment later than we do, so a refusal is followed by another question soon."""
        self._wanted = True
        self._patience_s = settings.DISPATCH_RETRY_S / 2

    @property
    def at_rest(self) -> bool:
        """No wave is in progress: every reserved group is started. It stays so while dispatch is held."""
        return not self._in_wave

    async def reach(self, limit: timedelta) -> None:
        """At the start. Later a coordinator may be away for a while; one that never came up is a fault."""
        try:
            await replace(calls.plan_dispatch, patience=limit, living=False)(
                self._question, summary="reach the coordinator"
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            raise never_came_up(
                "the coordinator", limit, "its log is coordinator.log under the stack's home"
            ) from error

    async def run(self) -> None:
        self._ended = False
        while not self._ended:
            await workflow.wait_condition(lambda: self._ended or (self._wanted and not self._held()))
            self._wanted = False
            if not self._ended and not await self._fill():
                await self._pause_or_wake()

    def end(self) -> None:
        """Start nothing more, not even the rest of the wave in progress. Cancelling the task is not enough: a wait that
        ends at the same moment, or an activity that completes all the same, swallows it."""
        self._ended = True

    async def _fill(self) -> bool:
        """Start one wave. False: there is room in the ledger, but no instance has room."""
        ledger = self._state.groups.ledger
        needed = groups_still_needed(ledger, self._state.admission.total_steps)
        self.refused = False
        if not needed or not ledger.free(ledger.version):
            self.idle = Idle("the ledger is full" if needed else "every group the run needs is drawn")
            return True
        self.idle = Idle(self.idle.reason, asked_at=workflow.time())
        plan = await self._ask()
        self.idle = Idle()
        if self._ended or self._held():
            self._wanted = True
            return True
        wave = plan_wave(ledger, plan.rooms, needed, settings.DISPATCH_WAVE)
        if wave is None:
            self.refused, self.idle = True, Idle(plan.reason or "no instance has room")
            return False
        self._patience_s = settings.DISPATCH_RETRY_S / 2
        self._in_wave = True
        await self._start(wave)
        self._in_wave = False
        self._wanted = True
        return True

    async def _pause_or_wake(self) -> None:
        """The coordinator's view may lag behind: ask again even when nothing wakes us, ever less often."""
        self._patience_s = min(self._patience_s * 2, settings.DISPATCH_RETRY_MAX_S)
        try:
            await workflow.wait_condition(lambda: self._wanted, timeout=self._patience_s)
        except TimeoutError:
            self._wanted = True

    async def _ask(self) -> DispatchPlan:
        """Not a local activity: one that resolves in the task in which the run continues as new would let it overlook
        signals of the same task (docs/decisions/continue-as-new.md)."""
        try:
            return await calls.plan_dispatch(self._question, summary="ask for room")
        except ActivityError as error:
            if not ran_out(error):
                raise
            raise not_in_time("the coordinator's answer", settings.STORE_PATIENCE) from error

    @property
    def _question(self) -> DispatchPlanRequest:
        ledger = self._state.groups.ledger
        return DispatchPlanRequest(
            run_id=self._run_id,
            trajectories_per_group=self._state.config.psrl.offered_trajectories,
            admits=tuple(DispatchRoom(version=tag, groups=ledger.free(Version(tag))) for tag in ledger.open_tags),
            strategy=self._state.config.psrl.rollout_coordination.routing_strategy,
        )

    async def _start(self, wave: Wave) -> None:
        """Everything is reserved and numbered before the first call: a report may come before the last one returns."""
        position = self._state.position
        first, position.next_group = position.next_group, position.next_group + wave.groups
        groups = tuple(training_group(first + i) for i in range(wave.groups))
        self._state.groups.start(wave.version, groups, workflow.time())
        await calls.draw_groups(
            DrawRequest(
                run_id=self._run_id,
                first=first,
                tags=(wave.version,) * wave.groups,
                places=tuple(position.take() for _ in groups),
                trajectories=self._state.config.psrl.offered_trajectories,
            ),
            summary=f"draw {wave.groups} prompts from {first}",
        )
        if self._ended:
            return
        await calls.start_groups(
            StartGroups(template=self._template(wave.version), groups=groups),
            summary=f"start {wave.groups} groups at v{wave.version}",
        )
        self._state.groups.begun(workflow.time())

    def _template(self, version: int) -> StartGroup:
        return StartGroup(
            run_id=self._run_id,
            group_id=GroupId(""),
            run_workflow_id=workflow.info().workflow_id,
            version_tag=version,
            rollout=RolloutSettings.of(self._state.config),
        )
