"""Keeps the rollout instances busy: reserves, draws and starts groups in bounded waves whenever something changed.

Owned by `TrainingRun`; runs as one task beside its main loop. Promise: no group is started that the ledger has not
admitted, and none that the rest of the run cannot use.
"""

from collections.abc import Callable

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import RewardScope, RunConfig
    from ...schemas.ids import GroupId, RunId, training_group
    from ...schemas.messages.data import DrawRequest
    from ...schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, Sampling
    from ...schemas.messages.run import StartGroup, StartGroups
    from ..calls import settings
    from ..calls import table as calls
    from ..ledger import Ledger
    from .dispatch import Wave, groups_still_needed, plan_wave
    from .state import RunState


class Dispatcher:
    """Its public fields are the part of the run's state that it moves: which group and which place of the data come
    next, and when each unfinished group was started."""

    def __init__(self, run_id: RunId, config: RunConfig, ledger: Ledger, state: RunState) -> None:
        self.next_group, self.next_place, self.redraw = state.next_group, state.next_place, list(state.redraw)
        self.started_at: dict[GroupId, float] = dict(state.started_at)
        self.why_idle = ""
        self._run_id, self._config, self._ledger = run_id, config, ledger
        self._total_steps = state.admission.total_steps
        self._wanted = True
        self._finishing = self._abandoned = False
        self._patience_s = settings.DISPATCH_RETRY_S / 2

    def wake(self) -> None:
        """Something changed: a place became free, a version was published, an instance serves. The coordinator may hear
        of it a moment later than we do, so a refusal is followed by another question soon."""
        self._wanted = True
        self._patience_s = settings.DISPATCH_RETRY_S / 2

    def finish(self) -> None:
        """Complete the wave in progress, then return from `run`."""
        self._finishing = True

    def abandon(self) -> None:
        """Start nothing more, not even the rest of the wave in progress: the run has failed. Cancelling the task is not
        enough, since an activity that completes all the same swallows the cancellation."""
        self._finishing = self._abandoned = True

    async def run(self, held: Callable[[], bool]) -> None:
        """Fill whenever woken, unless `held` (paused)."""
        while not self._finishing:
            await workflow.wait_condition(lambda: self._finishing or (self._wanted and not held()))
            self._wanted = False
            if not self._finishing and not await self._fill():
                await self._pause_or_wake()

    async def _fill(self) -> bool:
        """Start one wave. False: there is room in the ledger, but no instance has room."""
        needed = groups_still_needed(self._ledger, self._total_steps)
        if not needed or not self._ledger.free(self._ledger.version):
            self.why_idle = "the ledger is full" if needed else "every group the run needs is drawn"
            return True
        plan = await self._ask()
        if self._abandoned:
            return True
        wave = plan_wave(self._ledger, plan.rooms, needed, settings.DISPATCH_WAVE)
        if wave is None:
            self.why_idle = plan.reason or "no instance has room"
            return False
        self.why_idle = ""
        self._patience_s = settings.DISPATCH_RETRY_S / 2
        await self._start(wave)
        self._wanted = True
        return True

    async def _pause_or_wake(self) -> None:
        """The coordinator's view may lag behind: ask again even when nothing wakes us, ever less often."""
        self._patience_s = min(self._patience_s * 2, settings.DISPATCH_RETRY_MAX_S)
        try:
            await workflow.wait_condition(lambda: self._finishing or self._wanted, timeout=self._patience_s)
        except TimeoutError:
            self._wanted = True

    async def _ask(self) -> DispatchPlan:
        """Not a local activity: one that resolves in the task in which the run continues as new would let it overlook
        signals of the same task (docs/decisions/continue-as-new.md)."""
        return await calls.plan_dispatch(
            DispatchPlanRequest(run_id=self._run_id, trajectories_per_group=self._config.psrl.offered_trajectories),
            summary="ask for room",
        )

    async def _start(self, wave: Wave) -> None:
        groups = tuple(training_group(self.next_group + i) for i in range(wave.groups))
        self._ledger.reserve(wave.version, groups)
        self.started_at.update({group: workflow.time() for group in groups})
        first, self.next_group = self.next_group, self.next_group + wave.groups
        places = tuple(self._next_place() for _ in groups)
        await calls.draw_groups(
            DrawRequest(
                run_id=self._run_id,
                first=first,
                tags=(wave.version,) * wave.groups,
                places=places,
                trajectories=self._config.psrl.offered_trajectories,
            ),
            summary=f"draw {wave.groups} prompts from {first}",
        )
        if self._abandoned:
            return
        await calls.start_groups(
            StartGroups(template=self._template(wave.version), groups=groups),
            summary=f"start {wave.groups} groups at v{wave.version}",
        )

    def _next_place(self) -> int:
        if self.redraw:
            return self.redraw.pop(0)
        self.next_place += 1
        return self.next_place - 1

    def _template(self, version: int) -> StartGroup:
        psrl, reward = self._config.psrl, self._config.reward
        return StartGroup(
            run_id=self._run_id,
            group_id=GroupId(""),
            run_workflow_id=workflow.info().workflow_id,
            version_tag=version,
            needed=psrl.rollout_n,
            offered=psrl.offered_trajectories,
            sampling=Sampling(
                temperature=self._config.rollout.temperature,
                top_p=self._config.rollout.top_p,
                top_k=self._config.rollout.top_k,
                max_tokens=self._config.data.max_response_length,
            ),
            seed=self._config.trainer.seed,
            timeout_s=psrl.group_timeout_s,
            reward_timeout_s=self._config.scoring_timeout_s,
            reward_per_group=reward.scope is RewardScope.GROUP,
            coalesce_rewards=reward.coalesce,
            one_version=not psrl.rollout_coordination.partial_rollout.enable,
            routing=psrl.rollout_coordination.routing_strategy.method,
        )
