"""One training run, from admission to the last published version. The workflow id is the run id.

    admit -> bring up trainer and instances -> for every buffer: fill, consume, train, publish -> finish

The ledger, the data position and the run's phase live here and nowhere else. Groups report by signal, steps are child
workflows, and the run continues as new after every buffer, so its history stays small however long it runs.
Signals: `pause`, `resume`, `stop`. Queries: `status`, `ledger`.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ..schemas.config import RunConfig
    from ..schemas.errors import PsrlError
    from ..schemas.ids import GroupId, InstanceId, RunId, Version, step_workflow
    from ..schemas.messages.run import (
        EvaluationReport,
        GroupOutcome,
        GroupReport,
        InstanceChanged,
        RunPhase,
        RunResult,
        RunStatus,
        StartRun,
        StartStep,
        StepReport,
    )
    from . import run_parts, settings
    from .dispatcher import Dispatcher
    from .ledger import Consumption, GroupState, Ledger
    from .run_health import barren, no_instance_left, why_barren, why_no_instance
    from .run_state import RunState
    from .run_view import buffers, refused_status, run_status
    from .search import REWARD, RUN, STATE, STEP, VERSION
    from .train_step import TrainStep


@workflow.defn(failure_exception_types=[PsrlError])
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
        self._doing = "configuration, data, model and reward are being checked"
        self._admitted = self._paused = self._stopping = False
        self._unmarked: dict[str, list[GroupId]] = {}
        self._instances: dict[InstanceId, InstanceChanged] = {}
        if start.carried is not None:
            self._restore(RunState.model_validate(start.carried))

    @workflow.run
    async def run(self, start: StartRun) -> RunResult:
        try:
            if start.carried is None:
                await self._admit(start)
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
    def stop(self) -> None:
        """Finish the step in progress, save a checkpoint, give up live groups, end."""
        self._stopping = True

    @workflow.signal
    def group_report(self, report: GroupReport) -> None:
        """From a group, once. The ledger knows which groups are live: a repeated or late report changes nothing."""
        if not self._admitted or self._ledger.state(report.group_id) is not GroupState.RESERVED:
            return
        self._dispatcher.started_at.pop(report.group_id, None)
        if report.outcome is GroupOutcome.COMPLETE:
            self._ledger.occupy(report.group_id)
            self._state = self._state.model_copy(update={"unproductive": 0})
        else:
            self._ledger.release(report.group_id)
            self._state = self._state.with_drop(report.outcome.value, f"{report.group_id}: {report.reason}", True)
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
        phase = RunPhase.PAUSED if self._paused and self._phase is RunPhase.RUNNING else self._phase
        waiting = self._waiting_for()
        if not self._admitted:
            return refused_status(self._run_id, phase, self._reason, waiting)
        return run_status(
            self._run_id,
            phase=phase,
            reason=self._reason,
            waiting_for=waiting,
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
        admission = await run_parts.admit(self._run_id, start.config)
        config = RunConfig.model_validate(admission.config)
        ledger = Ledger(
            staleness=config.psrl.staleness,
            batch_groups=config.psrl.staleness_buffer_entries,
            offered_groups=config.psrl.offered_groups,
        )
        self._restore(
            RunState(admission=admission, ledger=ledger.to_dict(), paused=self._paused, stopping=self._stopping)
        )
        workflow.upsert_search_attributes([RUN.value_set(self._run_id), STEP.value_set(0)])

    async def _bring_up(self) -> None:
        """The trainer publishes version 0; each instance starts its engine and pulls it."""
        self._enter(RunPhase.STARTING)
        await self._record()
        self._doing = "the trainer loads the model"
        await run_parts.open_trainer(self._run_id, self._config, self._held)
        await run_parts.start_instances(self._run_id, self._config, Version(0))
        self._doing = "the first rollout instance to serve version 0"
        await run_parts.first_instance(self._instances, self._config)
        if self._config.data.val_files and self._config.trainer.val_before_train:
            await self._evaluate(Version(0))
        self._enter(RunPhase.RUNNING)
        self._state = self._state.model_copy(update={"idle_since": workflow.time()})
        await self._record()

    async def _one_buffer(self) -> None:
        """Keep the engines busy until this buffer can be consumed, then train on it while they go on."""
        beside = [
            asyncio.create_task(self._dispatcher.run(lambda: self._paused)),
            asyncio.create_task(self._sweep()),
        ]
        try:
            consumption = await self._wait_for_batch(beside)
            if consumption is not None:
                await self._train(consumption)
            self._dispatcher.finish()
            await beside[0]
            await self._mark_lost_groups()
        finally:
            for task in beside:
                task.cancel()

    async def _wait_for_batch(self, beside: list["asyncio.Task[None]"]) -> Consumption | None:
        """`None`: the run is to stop."""
        self._doing = ""
        await workflow.wait_condition(
            lambda: (
                self._stopping
                or (self._ledger.ready and not self._paused)
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
        buffer = consumption.buffer
        self._doing = f"the trainer to finish step {buffer} ({step_workflow(self._run_id, buffer)})"
        report = await workflow.execute_child_workflow(
            TrainStep.run,
            StartStep(
                run_id=self._run_id,
                buffer=buffer,
                taken=consumption.taken,
                dropped=consumption.dropped,
                checkpoint=self._due(buffer + 1, self._config.trainer.save_freq),
                waited_s=workflow.time() - self._state.idle_since,
            ),
            id=step_workflow(self._run_id, buffer),
            static_summary=f"step {buffer}: {len(consumption.taken)} groups",
            search_attributes=run_parts.attributes(self._run_id, step=buffer),
        )
        await self._published(report)

    async def _published(self, report: StepReport) -> None:
        self._doing = ""
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
        await self._give_up(self._ledger.live_groups(), "aborted")
        checkpoint = ""
        if self._ledger.version:
            self._doing = "the trainer to save a checkpoint"
            checkpoint = await run_parts.save_checkpoint(self._run_id, self._ledger.version, self._held)
        self._doing = f"validation rounds {list(self._state.evaluations)}"
        await run_parts.within(
            lambda: not self._state.evaluations, self._config.psrl.group_timeout_s, "the last validation round"
        )
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
        for step in (self._give_up(self._ledger.live_groups(), "aborted"), self._give_back(), self._record()):
            await self._attempt(step)

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
        while True:
            await workflow.sleep(settings.SWEEP)
            age = {group: workflow.time() - at for group, at in self._dispatcher.started_at.items()}
            quiet = tuple(group for group, seconds in age.items() if seconds > settings.SWEEP.total_seconds())
            for report in await run_parts.collect_reports(self._run_id, quiet) if quiet else ():
                self.group_report(report)
            patience = self._config.psrl.group_timeout_s + settings.SWEEP.total_seconds()
            late = tuple(group for group in quiet if age[group] > patience and group in self._dispatcher.started_at)
            if late:
                await self._give_up(late, "deadline")
                self._wake()

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

    async def _held(self, reason: str) -> None:
        """The trainer's disk is full; an empty reason: no longer."""
        self._doing = reason or "the trainer"

    async def _give_back(self) -> None:
        self._doing = "trainer and instances to be given back"
        await run_parts.stop_instances(self._run_id, self._config)
        await run_parts.close_trainer(self._run_id)
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

    def _waiting_for(self) -> str:
        if self._phase in {RunPhase.DONE, RunPhase.STOPPED, RunPhase.FAILED}:
            return ""
        if self._doing:
            return self._doing
        if self._paused:
            return "signal `resume`"
        want, have = self._ledger.batch_groups, self._ledger.occupied_count
        idle = f"; nothing new is started: {self._dispatcher.why_idle}" if self._dispatcher.why_idle else ""
        return f"buffer {self._ledger.buffer}: {have} of {want} groups complete{idle}"

    # --- carried state -----------------------------------------------------------------------------------------------

    def _restore(self, state: RunState) -> None:
        self._state = state
        self._config = RunConfig.model_validate(state.admission.config)
        self._ledger = Ledger.from_dict(state.ledger)
        self._instances.update(state.instances)
        self._paused, self._stopping = state.paused, state.stopping
        self._dispatcher = Dispatcher(
            self._run_id, self._config, self._ledger, state.next_group, state.admission.total_steps
        )
        self._dispatcher.started_at = dict(state.started_at)
        self._admitted, self._phase = True, RunPhase.RUNNING
        workflow.set_current_details(f"step {self._ledger.version} of {state.admission.total_steps}")

    def _carried(self) -> RunState:
        return self._state.model_copy(
            update={
                "ledger": self._ledger.to_dict(),
                "next_group": self._dispatcher.next_group,
                "started_at": self._dispatcher.started_at,
                "instances": self._instances,
                "paused": self._paused,
                "stopping": self._stopping,
            }
        )
