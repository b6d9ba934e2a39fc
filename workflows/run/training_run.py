"""One training run, from admission to the last published version. The workflow id is the run id.

    admit or take up -> bring up trainer and instances -> for every buffer: fill, consume, train, publish -> finish

The ledger, the data position and the run's phase live here and nowhere else. Groups report by signal, steps are child
workflows, and the run continues as new after every buffer, so its history stays small however long it runs. An ended
run leaves everything in the store that another execution needs to take it up.
Signals: `pause`, `resume`, `stop`. Queries: `status`, `ledger`.
"""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import RunConfig
    from ...schemas.ids import GroupId, InstanceId, RunId, Version, step_workflow
    from ...schemas.messages.run import (
        EvaluationReport,
        GroupOutcome,
        GroupReport,
        InstanceChanged,
        RunPhase,
        RunResult,
        RunStatus,
        StartRun,
        StartStep,
        StepHeld,
        StepReport,
        StopRun,
        Wait,
    )
    from ..calls import settings
    from ..calls.tasks import end
    from ..calls.waits import Waits
    from ..failure import FAILS
    from ..ledger import Consumption, GroupState, Ledger
    from ..search import REWARD, RUN, STATE, STEP, VERSION
    from ..training.step import TrainStep
    from . import parts as run_parts
    from .dispatcher import Dispatcher
    from .health import barren, no_instance_left, why_barren, why_no_instance
    from .restore import empty_ledger, take_up
    from .state import RunState
    from .view import buffers, refused_status, run_status, wait_for_groups, wait_for_person


@workflow.defn(failure_exception_types=FAILS)
class TrainingRun:
    _state: RunState
    _config: RunConfig
    _ledger: Ledger
    _dispatcher: Dispatcher

    @workflow.init
    def __init__(self, start: StartRun) -> None:
        self._run_id = RunId(workflow.info().workflow_id)
        self._phase = RunPhase.ADMITTING
        self._reason = ""
        self._waits = Waits()
        self._held: StepHeld | None = None
        self._seen_at = workflow.time()
        self._back_at = 0.0
        """When somebody ran this workflow again after it had been left alone for long; groups started before count for
        no judgement of the task."""
        self._admitted = self._paused = self._stopping = self._abandoning = False
        self._has_instances = start.carried is not None
        self._unmarked: dict[str, list[GroupId]] = {}
        self._instances: dict[InstanceId, InstanceChanged] = {}
        if start.carried is not None:
            self._restore(RunState.model_validate(start.carried))

    @workflow.run
    async def run(self, start: StartRun) -> RunResult:
        try:
            if start.carried is None:
                await (self._take_up(start) if start.resume else self._admit(start))
                await self._bring_up()
            while not self._finished:
                await self._one_buffer()
                if not self._finished:
                    await self._roll_over()
            return await self._finish()
        except workflow.ContinueAsNewError:
            raise
        except Exception as error:
            await self._fail(error)
            raise

    # --- signals and queries -----------------------------------------------------------------------------------------

    @workflow.signal
    def pause(self) -> None:
        """Start no new group and no new step until `resume`. What is in flight finishes and is kept."""
        self._paused = True

    @workflow.signal
    def resume(self) -> None:
        self._paused = False
        self._wake()

    @workflow.signal
    def stop(self, request: StopRun = StopRun()) -> None:  # noqa: B008 - frozen; people may leave the argument out
        """End the run so that it can be resumed: unfinished groups are given up, complete ones and the position in the
        data are kept. The step in progress is finished and a checkpoint saved, unless the request says `now`."""
        self._stopping = True
        self._abandoning |= request.now

    @workflow.signal
    def step_held(self, held: StepHeld) -> None:
        """From a step that somebody must help on, for example by freeing disk space. Nothing new starts meanwhile."""
        self._held = held if held.reason else None
        self._wake()

    @workflow.signal
    def group_report(self, report: GroupReport) -> None:
        """From a group, once. The ledger knows which groups are live: a repeated or late report changes nothing."""
        self._notice_absence()
        if not self._admitted or self._ledger.state(report.group_id) is not GroupState.RESERVED:
            workflow.logger.warning("report of group %s changes nothing: it is not waited for", report.group_id)
            return
        started = self._dispatcher.started_at.pop(report.group_id, workflow.time())
        if report.outcome is GroupOutcome.COMPLETE:
            self._ledger.occupy(report.group_id)
            self._state = self._state.model_copy(update={"unproductive": 0})
        else:
            self._ledger.release(report.group_id)
            # What the stack's own absence cost says nothing about the task.
            counts = started > self._back_at
            self._state = self._state.with_drop(report.outcome.value, f"{report.group_id}: {report.reason}", counts)
            self._unmarked.setdefault(report.outcome.value, []).append(report.group_id)
        self._wake()

    @workflow.signal
    def instance_changed(self, changed: InstanceChanged) -> None:
        self._instances[changed.instance] = changed
        self._wake()

    @workflow.signal
    def evaluation_report(self, report: EvaluationReport) -> None:
        open_rounds = tuple(version for version in self._state.evaluations if version != report.version)
        self._state = self._state.model_copy(
            update={"evaluations": open_rounds, "validation_accuracy": report.accuracy}
        )

    @workflow.query
    def status(self) -> RunStatus:
        phase = RunPhase.PAUSED if self._resting and self._phase is RunPhase.RUNNING else self._phase
        reason = self._reason or (self._held.reason if self._held else "")
        waits = self._current_waits()
        if not self._admitted:
            return refused_status(self._run_id, phase, reason, waits)
        return run_status(
            self._run_id,
            phase=phase,
            reason=reason,
            waits=waits,
            state=self._state,
            ledger=self._ledger,
            instances=self._instances,
        )

    @workflow.query
    def ledger(self) -> list[dict[str, Any]]:
        """The buffers as people picture them: derived, never stored."""
        return buffers(self._ledger) if self._admitted else []

    # --- the stages of a run -----------------------------------------------------------------------------------------

    async def _admit(self, start: StartRun) -> None:
        with self._waits.during(
            "configuration, data, model and reward to be checked", "the cpu worker", settings.ADMISSION, "the run fails"
        ):
            admission = await run_parts.admit(self._run_id, start.config)
        ledger = empty_ledger(RunConfig.model_validate(admission.config))
        self._restore(
            RunState(admission=admission, ledger=ledger.to_dict(), paused=self._paused, stopping=self._stopping)
        )
        workflow.upsert_search_attributes([RUN.value_set(self._run_id), STEP.value_set(0)])

    async def _take_up(self, start: StartRun) -> None:
        """Go on where an earlier execution of this run ended, from the store alone."""
        with self._waits.during(
            "the run's position to be read from the store", "the cpu worker", settings.ADMISSION, "the run fails"
        ):
            restored = await run_parts.restore(self._run_id, start.accept_changed_data)
        config = RunConfig.model_validate(restored.admission.config)
        with self._waits.during("the earlier execution's instances to end", "the orchestrator", 2 * settings.LEASE):
            await run_parts.retire_instances(self._run_id, config)
        taken_up = take_up(restored, config)
        await run_parts.reopen(self._run_id, restored)
        self._restore(taken_up.state.model_copy(update={"paused": self._paused, "stopping": self._stopping}))
        workflow.upsert_search_attributes([RUN.value_set(self._run_id), STEP.value_set(restored.version)])
        await run_parts.cancel_groups(self._run_id, restored.unfinished, "aborted")
        await self._give_up(taken_up.lost, "dropped")

    async def _bring_up(self) -> None:
        """The trainer publishes version 0, unless it has; each instance starts its engine and pulls the newest."""
        version, limit = self._ledger.version, timedelta(seconds=self._config.psrl.deployment.start_timeout_s)
        self._enter(RunPhase.STARTING)
        await self._record()
        with self._waits.during("the trainer to load the model", "the trainer", limit, "the run fails"):
            await run_parts.open_trainer(self._run_id, self._config, self._hold, lambda: self._held is not None)
        self._has_instances = True
        await run_parts.start_instances(self._run_id, self._config, version)
        what = f"the first rollout instance to serve version {version}"
        with self._waits.during(what, "the rollout hosts", limit, "the run fails"):
            await run_parts.first_instance(self._instances, self._config)
        with self._waits.during("the coordinator to answer", "the coordinator", limit, "the run fails"):
            await run_parts.reach_coordinator(self._run_id, self._config)
        if self._config.data.val_files and self._config.trainer.val_before_train and not version:
            await self._evaluate(version)
        self._enter(RunPhase.RUNNING)
        self._state = self._state.model_copy(update={"idle_since": workflow.time()})
        await self._record()

    async def _one_buffer(self) -> None:
        """Keep the engines busy until this buffer can be consumed, then train on it while they go on."""
        beside = [
            asyncio.create_task(self._dispatcher.run(lambda: self._resting)),
            asyncio.create_task(self._sweep()),
        ]
        try:
            consumption = self._open_batch() or await self._wait_for_batch(beside)
            if consumption is not None:
                await self._train(consumption)
            self._dispatcher.finish()
            await beside[0]
            await self._mark_lost_groups()
        finally:
            self._dispatcher.abandon()
            for task in beside:
                task.cancel()

    def _open_batch(self) -> Consumption | None:
        """The batch whose step the end of an earlier execution cut short."""
        taken = self._state.open_batch
        self._state = self._state.model_copy(update={"open_batch": ()})
        return Consumption(self._ledger.version, taken) if taken else None

    async def _wait_for_batch(self, beside: list["asyncio.Task[None]"]) -> Consumption | None:
        """`None`: the run is to stop."""
        await workflow.wait_condition(
            lambda: (
                self._stopping
                or (self._ledger.ready and not self._resting)
                or self._no_instance_left
                or self._barren
                or any(task.done() for task in beside)
            )
        )
        for task in beside:
            if task.done():
                task.result()
        if self._stopping:
            return None
        self._refuse_hopeless_run()
        return self._ledger.consume()

    async def _train(self, consumption: Consumption) -> None:
        assert consumption.taken is not None
        if consumption.dropped:
            await self._give_up(consumption.dropped, "dropped")
        start = StartStep(
            run_id=self._run_id,
            buffer=consumption.buffer,
            taken=consumption.taken,
            dropped=consumption.dropped,
            checkpoint=self._due(consumption.buffer + 1, self._config.trainer.save_freq),
            waited_s=workflow.time() - self._state.idle_since,
        )
        what = f"step {start.buffer} to be trained ({step_workflow(self._run_id, start.buffer)})"
        with self._waits.during(what, "the trainer", settings.TRAIN_PATIENCE, "the run fails"):
            report = await self._step(start)
        if report is not None:
            await self._published(report)

    async def _step(self, start: StartStep) -> StepReport | None:
        """`None`: it was abandoned. What it had begun is found again by `resume`."""
        step = await workflow.start_child_workflow(
            TrainStep.run,
            start,
            id=step_workflow(self._run_id, start.buffer),
            static_summary=f"step {start.buffer}: {len(start.taken)} groups",
            search_attributes=run_parts.attributes(self._run_id, step=start.buffer),
        )
        await workflow.wait_condition(lambda: step.done() or self._abandoning)
        self._held = None
        if step.done():
            return step.result()
        await end(step)
        return None

    async def _published(self, report: StepReport) -> None:
        version = Version(report.publish.version)
        self._ledger.publish(version)
        self._state = self._state.model_copy(
            update={"reward_mean": report.batch.reward_mean, "idle_since": workflow.time()}
        )
        await run_parts.sync_instances(self._run_id, self._config, version)
        if self._config.data.val_files and self._due(version, self._config.trainer.test_freq):
            await self._evaluate(version)
        workflow.upsert_search_attributes(
            [STEP.value_set(version), VERSION.value_set(version), REWARD.value_set(report.batch.reward_mean)]
        )
        self._wake()

    async def _roll_over(self) -> None:
        """Continue as new with all of the state. A signal is either handled before this point (handlers do not wait,
        no local activity lets this task run ahead of its signals) or makes the server refuse and repeat the task."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            StartRun(config=self._state.admission.config, carried=self._carried().model_dump(mode="json"))
        )

    async def _finish(self) -> RunResult:
        phase = RunPhase.STOPPED if self._ledger.version < self._state.admission.total_steps else RunPhase.DONE
        self._enter(RunPhase.STOPPING)
        await self._let_go(everything=phase is RunPhase.DONE)
        checkpoint = ""
        if self._ledger.version and not self._abandoning:
            with self._waits.during("a checkpoint", "the trainer", settings.TRAIN_PATIENCE, "the run fails"):
                checkpoint = await run_parts.save_checkpoint(self._run_id, self._ledger.version, self._hold)
        if self._state.evaluations and not self._abandoning:
            limit = timedelta(seconds=self._config.psrl.group_timeout_s)
            what = f"validation of versions {', '.join(map(str, self._state.evaluations))}"
            with self._waits.during(what, "the rollout instances", limit, "the run fails"):
                await run_parts.within(lambda: not self._state.evaluations, limit, what)
        await self._give_back()
        self._enter(phase)
        await self._record()
        return RunResult(
            phase=phase,
            steps=self._ledger.version,
            version=self._ledger.version,
            reward_last=self._state.reward_mean,
            checkpoint=checkpoint,
        )

    async def _fail(self, error: Exception) -> None:
        """Best effort: the first error is the one that counts."""
        self._reason = "cancelled" if is_cancelled_exception(error) else run_parts.explain(error)
        self._enter(RunPhase.FAILED)
        if not self._admitted:
            return
        await self._attempt(self._mark_lost_groups())
        await self._attempt(self._let_go(everything=False))
        await self._attempt(self._give_back())
        await self._attempt(self._record())

    @staticmethod
    async def _attempt(step: Awaitable[None]) -> None:
        try:
            await asyncio.shield(step)
        except Exception as error:  # noqa: BLE001 - cleaning up after a failure must not hide the failure
            workflow.logger.warning("while ending the run: %s", error)

    # --- parts of the stages -----------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Look after groups that have not reported: one that ended without our hearing of it is settled now, one that
        is past its deadline is given up and replaced."""
        self._notice_absence()
        while True:
            await workflow.sleep(settings.SWEEP)
            self._notice_absence()
            age = {group: workflow.time() - at for group, at in self._dispatcher.started_at.items()}
            quiet = tuple(group for group, seconds in age.items() if seconds > settings.SWEEP.total_seconds())
            for report in await run_parts.collect_reports(self._run_id, quiet) if quiet else ():
                self.group_report(report)
            patience = self._config.psrl.group_timeout_s + settings.SWEEP.total_seconds()
            late = tuple(group for group in quiet if age[group] > patience and group in self._dispatcher.started_at)
            if late:
                await self._give_up(late, "deadline")
                self._wake()

    def _notice_absence(self) -> None:
        """Time in which nobody ran this workflow (the stack was down) counts for no group's deadline."""
        now = workflow.time()
        away_s, self._seen_at = now - self._seen_at, now
        if self._admitted and away_s > settings.ABSENCE.total_seconds():
            started = self._dispatcher.started_at
            started.update({group: min(now, at + away_s) for group, at in started.items()})
            self._back_at = now

    async def _let_go(self, everything: bool) -> None:
        """Groups that are complete stay for `resume`, unless the run is done."""
        live = self._ledger.live_groups()
        await self._give_up(
            tuple(group for group in live if everything or self._ledger.state(group) is GroupState.RESERVED), "aborted"
        )

    async def _give_up(self, groups: tuple[GroupId, ...], reason: str) -> None:
        for group in groups:
            self._dispatcher.started_at.pop(group, None)
            if self._ledger.state(group) is not None:
                self._ledger.release(group)
            self._state = self._state.with_drop(reason, f"{group}: {reason}", unproductive=reason == "deadline")
        await run_parts.cancel_groups(self._run_id, groups, reason)

    async def _mark_lost_groups(self) -> None:
        """Write down in the store which groups failed or were filtered: one call per reason and buffer."""
        while self._unmarked:
            reason, groups = self._unmarked.popitem()
            await run_parts.cancel_groups(self._run_id, tuple(groups), reason)

    async def _evaluate(self, version: Version) -> None:
        self._state = self._state.model_copy(update={"evaluations": (*self._state.evaluations, version)})
        await run_parts.start_evaluation(self._run_id, self._config, version)

    async def _hold(self, reason: str) -> None:
        """A call of the trainer outside a step finds no room on its disk; an empty reason: no longer."""
        self.step_held(StepHeld(buffer=self._ledger.version, reason=reason))

    async def _give_back(self) -> None:
        with self._waits.during(
            "trainer and instances to be given back", "their hosts", settings.LEASE, "they end with their leases"
        ):
            if self._has_instances:
                await run_parts.stop_instances(self._run_id, self._config)
            await run_parts.close_trainer(self._run_id)
            if self._has_instances:
                await run_parts.instances_stopped(self._instances, self._config)

    async def _record(self) -> None:
        await run_parts.record(self.status())

    def _refuse_hopeless_run(self) -> None:
        if self._no_instance_left:
            raise ApplicationError(why_no_instance(self._instances), type="EngineUnavailable", non_retryable=True)
        if self._barren:
            reason = why_barren(self._state, self._config, self._dispatcher.next_group)
            raise ApplicationError(reason, type="DataError", non_retryable=True)

    @property
    def _no_instance_left(self) -> bool:
        return no_instance_left(self._instances, self._config)

    @property
    def _barren(self) -> bool:
        return barren(self._state, self._config)

    @property
    def _finished(self) -> bool:
        return self._stopping or self._ledger.version >= self._state.admission.total_steps

    def _due(self, version: int, every: int) -> bool:
        return version == self._state.admission.total_steps or (every > 0 and version % every == 0)

    def _wake(self) -> None:
        if self._admitted:
            self._dispatcher.wake()

    def _enter(self, phase: RunPhase) -> None:
        self._phase = phase
        workflow.upsert_search_attributes([STATE.value_set(phase.value)])

    @property
    def _resting(self) -> bool:
        """Nothing new is started: somebody paused the run, or a step is held."""
        return self._paused or self._held is not None

    def _current_waits(self) -> tuple[Wait, ...]:
        if self._phase in {RunPhase.DONE, RunPhase.STOPPED, RunPhase.FAILED}:
            return ()
        waits = self._waits.current
        if self._held is not None:
            waits = (wait_for_person(f"step {self._held.buffer}: {self._held.reason}"), *waits)
        elif self._paused:
            waits = (*waits, wait_for_person("signal `resume`"))
        elif self._admitted and self._phase is RunPhase.RUNNING and not waits:
            waits = (wait_for_groups(self._config, self._ledger, self._dispatcher, self._state.idle_since),)
        return waits

    # --- carried state -----------------------------------------------------------------------------------------------

    def _restore(self, state: RunState) -> None:
        self._state = state
        self._config = RunConfig.model_validate(state.admission.config)
        self._ledger = Ledger.from_dict(state.ledger)
        self._instances.update(state.instances)
        self._paused, self._stopping = state.paused, state.stopping
        self._seen_at, self._back_at = state.seen_at or self._seen_at, state.back_at
        self._dispatcher = Dispatcher(self._run_id, self._config, self._ledger, state)
        self._admitted, self._phase = True, RunPhase.RUNNING
        workflow.set_current_details(f"step {self._ledger.version} of {state.admission.total_steps}")

    def _carried(self) -> RunState:
        return self._state.model_copy(
            update={
                "ledger": self._ledger.to_dict(),
                "next_group": self._dispatcher.next_group,
                "next_place": self._dispatcher.next_place,
                "redraw": tuple(self._dispatcher.redraw),
                "started_at": self._dispatcher.started_at,
                "seen_at": workflow.time(),
                "back_at": self._back_at,
                "instances": self._instances,
                "paused": self._paused,
                "stopping": self._stopping,
            }
        )
