"""How a run ends: in order, with a last checkpoint and its validation rounds, or by an error. Used by `TrainingRun`.

Promises: trainer and instances are released and the run's end is recorded, also after a failure; complete groups stay
in the store for `resume`, unless every step is trained.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import RunId
    from ...schemas.messages.run import RunPhase, RunResult
    from ...schemas.status import GroupStatus
    from ..calls import settings
    from ..calls.lifetime import while_alive
    from ..calls.waits import Waits
    from ..training.stage import Hold
    from .beside import Beside
    from .faults import not_in_time
    from .instances import Instances
    from .seeing_off import SeeingOff
    from .state import RunState
    from .sweep import Sweep
    from .trainer import release_trainer, save_checkpoint


class Ending:
    def __init__(
        self,
        run_id: RunId,
        state: RunState,
        *,
        waits: Waits,
        beside: Beside,
        instances: Instances,
        seeing_off: SeeingOff,
        sweep: Sweep,
        hold: Hold,
        enter: Callable[[RunPhase], None],
        record: Callable[[RunPhase], Awaitable[None]],
    ) -> None:
        """`hold`: the trainer finds no room on its disk; `enter` shows a phase; `record` writes it into the store."""
        self._run_id, self._state = run_id, state
        self._waits, self._beside = waits, beside
        self._instances, self._seeing_off, self._sweep = instances, seeing_off, sweep
        self._hold, self._enter, self._record = hold, enter, record

    async def finish(self) -> RunResult:
        state, phase = self._state, RunPhase.DONE if self._state.trained_all else RunPhase.STOPPED
        self._enter(RunPhase.STOPPING)
        live = state.groups.ledger.live_groups() if phase is RunPhase.DONE else state.groups.unfinished
        state.groups.give_up(live, GroupStatus.ABORTED)
        await self._seeing_off.all()
        checkpoint = ""
        if state.version and not state.control.abandoning:
            with self._waits.during("a checkpoint", "the trainer", settings.TRAIN_PATIENCE, "the run fails"):
                checkpoint = await save_checkpoint(self._run_id, state.version, self._hold)
        await self._last_validation()
        await self._release()
        await self._record(phase)
        self._enter(phase)
        return RunResult(
            phase=phase,
            steps=state.version,
            version=state.version,
            reward_last=state.reward_mean,
            checkpoint=checkpoint,
        )

    async def tidy_up(self) -> None:
        """After a failure. Best effort: the first error is the one that counts."""
        self._state.groups.give_up(self._state.groups.unfinished, GroupStatus.ABORTED)
        await self._attempt(self._seeing_off.all())
        await self._attempt(self._release())
        await self._attempt(self._record(RunPhase.FAILED))

    @staticmethod
    async def _attempt(step: Awaitable[None]) -> None:
        try:
            await asyncio.shield(step)
        except Exception as error:  # noqa: BLE001 - cleaning up after a failure must not hide the failure
            workflow.logger.warning("while ending the run: %s", error)

    async def _last_validation(self) -> None:
        """Rounds that still run, looked after meanwhile."""
        rounds, limit = self._state.rounds, timedelta(seconds=self._state.config.psrl.group_timeout_s)
        if not rounds.open:
            return
        what = f"validation of versions {', '.join(map(str, rounds.open))}"
        async with self._beside.working(self._sweep):
            with self._waits.during(what, "the rollout instances", limit, "the run fails"):
                try:
                    await while_alive(self._validated, limit)
                except TimeoutError as error:
                    raise not_in_time(what, limit) from error
            self._beside.raise_failure()

    def _validated(self) -> bool:
        """Or nothing is gained by waiting."""
        return not self._state.rounds.open or self._state.control.abandoning or self._beside.failed

    async def _release(self) -> None:
        what = "the trainer and the instances to be released"
        with self._waits.during(what, "their hosts", settings.LEASE, "their leases expire"):
            await self._instances.stop()
            await release_trainer(self._run_id)
            await self._instances.stopped()
