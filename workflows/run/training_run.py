"""One training run, from admission to the last published version. The workflow id is the run id.

    open (admit, or resume from the store) -> bring up trainer and instances
    -> for every buffer: fill, consume, train, publish -> finish

`RunState` is all that a run is; the other files of this folder are its parts. Groups, instances and validation rounds
report by signal, a sweep looks after those that cannot, steps are child workflows. The run continues as new after every
buffer, and in mid-buffer when the server suggests it, so its history stays small however long it runs. An ended run
leaves everything in the store that another execution needs to resume it.
Signals: `pause`, `resume`, `stop`. Queries: `status`, `ledger`.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import RunId, Version, step_workflow
    from ...schemas.messages.run import (
        EvaluationReport,
        GroupReport,
        GroupReports,
        InstanceChanged,
        RunPhase,
        RunResult,
        RunStatus,
        StartRun,
        StartStep,
        StepHeld,
        StepReport,
        StopRun,
    )
    from ...schemas.search import REWARD, RUN, STATE, STEP, VERSION
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.waits import Waits
    from ..failure import FAILS
    from . import opening
    from .beside import Beside
    from .control import Control
    from .dispatcher import Dispatcher, Idle
    from .ending import Ending
    from .faults import explain, hopeless
    from .history import History
    from .instances import Instances
    from .seamless import seamless
    from .seeing_off import SeeingOff
    from .state import RunState
    from .steps import Steps
    from .sweep import Sweep
    from .trainer import open_trainer
    from .validation import Validation
    from .view import buffers, current_waits, run_status


@workflow.defn(failure_exception_types=FAILS)
class TrainingRun:
    _state: RunState
    _steps: Steps
    _dispatcher: Dispatcher
    _instances: Instances
    _validation: Validation
    _seeing_off: SeeingOff
    _sweep: Sweep
    _ending: Ending

    @workflow.init
    def __init__(self, start: StartRun) -> None:
        self._run_id = RunId(workflow.info().workflow_id)
        self._control, self._waits, self._history, self._beside = Control(), Waits(), History(), Beside()
        self._admitted = False
        if start.carried is not None:
            self._assemble(RunState.model_validate(start.carried))

    @workflow.run
    async def run(self, start: StartRun) -> RunResult:
        try:
            if start.carried is None:
                await self._open(start)
                await self._bring_up()
            await self._train_buffers()
            if not self._state.over:
                await self._roll_over()
            return await self._ending.finish()
        except workflow.ContinueAsNewError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            await self._fail(error)
            raise

    # --- signals and queries -----------------------------------------------------------------------------------------

    @workflow.signal
    def pause(self) -> None:
        """Start no new group and no new step until `resume`. What is in flight finishes and is kept."""
        self._control.pause()

    @workflow.signal
    def resume(self) -> None:
        """End a pause. A run that is ending does not heed it, and says so in its status."""
        self._control.resume()
        self._wake()

    @workflow.signal
    def stop(self, request: StopRun = StopRun()) -> None:  # noqa: B008 - frozen; people may leave the argument out
        """End the run so that it can be resumed: unfinished groups are given up, complete ones and the position in the
        data are kept. The step in progress is finished and a checkpoint saved, unless the request says `now`."""
        self._control.stop(request.now)

    @workflow.signal
    def step_held(self, held: StepHeld) -> None:
        """From a step that needs people's help, for example free disk space. Nothing new starts meanwhile."""
        if self._admitted:
            self._steps.hold(held)

    @workflow.signal
    def group_reports(self, told: GroupReports) -> None:
        """From groups, each once."""
        for report in told.reports:
            self._hear(report)

    @workflow.signal
    def instance_changed(self, changed: InstanceChanged) -> None:
        if not self._admitted or not self._state.fleet.hear(changed):
            workflow.logger.warning("%s is none of this run's", changed.instance)
        self._wake()

    @workflow.signal
    def evaluation_report(self, report: EvaluationReport) -> None:
        if self._admitted:
            self._state.rounds.report(report)

    @workflow.query
    def status(self) -> RunStatus:
        state = self._state if self._admitted else None
        idle = self._dispatcher.idle if self._admitted else Idle()
        waits = current_waits(self._control, state, idle, self._waits.current, workflow.now())
        return run_status(self._run_id, self._control, state, waits)

    @workflow.query
    def ledger(self) -> list[dict[str, Any]]:
        """The buffers as people picture them: derived, never stored."""
        return buffers(self._state.groups.ledger) if self._admitted else []

    # --- the stages of a run -----------------------------------------------------------------------------------------

    async def _open(self, start: StartRun) -> None:
        comes_to_be = opening.resume if start.resume else opening.admit
        self._assemble(await comes_to_be(self._run_id, start, self._control, self._waits))
        workflow.upsert_search_attributes([RUN.value_set(self._run_id), STEP.value_set(self._state.version)])
        await self._seeing_off.all()

    async def _bring_up(self) -> None:
        """The trainer publishes version 0, unless it has; each instance starts its engine and pulls the newest."""
        state, config = self._state, self._state.config
        limit = timedelta(seconds=config.psrl.deployment.start_timeout_s)
        self._enter(RunPhase.STARTING)
        await self._record(RunPhase.STARTING)
        with self._waits.during("the trainer to load the model", "the trainer", limit, "the run fails"):
            await open_trainer(self._run_id, config, self._hold)
        await self._instances.start()
        what = f"the first rollout instance to serve version {state.version}"
        async with self._beside.working(self._sweep):
            with self._waits.during(what, "the rollout hosts", limit, "the run fails"):
                await self._instances.first_serves()
        with self._waits.during("the coordinator to answer", "the coordinator", limit, "the run fails"):
            await self._dispatcher.reach(limit)
        if config.data.val_files and config.trainer.val_before_train and not state.version:
            await self._validation.begin(state.version)
        self._enter(RunPhase.RUNNING)
        state.idle_since = workflow.time()
        await self._record(RunPhase.RUNNING)

    async def _train_buffers(self) -> None:
        """Keep the engines busy and train on every buffer that is complete, until the run is over or its history is to
        begin anew."""
        async with self._beside.working(self._dispatcher, self._sweep):
            while (step := await self._next_step()) is not None:
                await self._train(step)

    async def _next_step(self) -> StartStep | None:
        """`None`: nothing more is trained in this execution."""
        state = self._state
        while True:
            await workflow.wait_condition(
                lambda: (
                    self._steps.ready
                    or self._ends_here
                    or self._beside.failed
                    or hopeless(state, "") is not None
                    or self._announcement_due
                )
            )
            self._beside.raise_failure()
            if self._announcement_due:
                await self._instances.sync()
                self._wake()
            if self._ends_here:
                return None
            if self._steps.ready:
                return self._steps.take()
            if fault := hopeless(state, self._dispatcher.idle.reason):
                raise fault

    async def _train(self, start: StartStep) -> None:
        """The engines keep generating meanwhile."""
        if start.dropped:
            await self._seeing_off.all()
        what = f"step {start.buffer} to be trained ({step_workflow(self._run_id, start.buffer)})"
        with self._waits.during(what, "the trainer", settings.TRAIN_PATIENCE, "the run fails"):
            report = await self._steps.train(start)
        if report is not None:
            await self._published(report)
        await self._seeing_off.all()

    async def _published(self, report: StepReport) -> None:
        state, version = self._state, Version(report.publish.version)
        state.groups.ledger.publish(version)
        state.reward_mean, state.idle_since = report.batch.reward_mean, workflow.time()
        state.unannounced = seamless(state)
        if not state.unannounced:
            await self._instances.sync()
        if state.config.data.val_files and state.due(version, state.config.trainer.test_freq):
            await self._validation.begin(version)
        workflow.upsert_search_attributes(
            [STEP.value_set(version), VERSION.value_set(version), REWARD.value_set(report.batch.reward_mean)]
        )
        self._wake()

    async def _roll_over(self) -> None:
        """Continue as new with all of the state. A signal is either handled before this point (handlers do not wait,
        no local activity lets this task run ahead of its signals) or makes the server refuse and repeat the task."""
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._state.seen(workflow.time())
        carried = self._state.model_dump(mode="json")
        workflow.continue_as_new(StartRun(config=self._state.admission.config, carried=carried))

    async def _fail(self, error: BaseException) -> None:
        self._control.reason = "cancelled" if is_cancelled_exception(error) else explain(error)
        self._enter(RunPhase.FAILED)
        if self._admitted:
            await self._ending.tidy_up()

    # --- what the stages ask -----------------------------------------------------------------------------------------

    @property
    def _announcement_due(self) -> bool:
        return self._state.unannounced and not seamless(self._state)

    @property
    def _ends_here(self) -> bool:
        """This execution has done its part. Nothing that is being started or looked after is cut short."""
        undisturbed = self._dispatcher.at_rest and self._sweep.at_rest
        return self._leaving and (undisturbed or self._control.abandoning)

    @property
    def _leaving(self) -> bool:
        return self._state.over or self._steps.trained or self._history.long

    @property
    def _dispatch_held(self) -> bool:
        return self._control.resting or self._history.exhausted or (self._leaving and not self._steps.in_progress)

    @property
    def _stuck(self) -> bool:
        """Nothing is in flight, and nothing can be started although an instance serves."""
        state = self._state
        waiting = self._dispatcher.refused and not state.groups.unfinished and not state.groups.ledger.ready
        return waiting and state.fleet.serving and not self._steps.in_progress and not self._dispatch_held

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _hear(self, report: GroupReport) -> None:
        """The ledger knows which groups are live: a repeated or late report changes nothing."""
        if self._admitted:
            self._state.seen(workflow.time())
            if self._state.groups.report(report, self._state.absence.back_at):
                self._wake()
                return
        workflow.logger.warning("report of group %s changes nothing: it is not waited for", report.group_id)

    def _assemble(self, state: RunState) -> None:
        self._state, self._control, self._admitted = state, state.control, True
        state.seen(workflow.time())
        self._steps = Steps(
            self._run_id,
            state,
            abandoned=lambda: self._control.abandoning or self._beside.failed,
            wake=self._wake,
        )
        self._dispatcher = Dispatcher(self._run_id, state, lambda: self._dispatch_held)
        self._instances = Instances(self._run_id, state)
        self._validation = Validation(self._run_id, state)
        self._seeing_off = SeeingOff(self._run_id, state.groups)
        self._sweep = Sweep(
            self._run_id,
            state,
            instances=self._instances,
            validation=self._validation,
            seeing_off=self._seeing_off,
            report=self._hear,
            wake=self._wake,
            stuck=lambda: self._stuck,
            rare=lambda: self._history.exhausted,
        )
        self._ending = Ending(
            self._run_id,
            state,
            waits=self._waits,
            beside=self._beside,
            instances=self._instances,
            seeing_off=self._seeing_off,
            sweep=self._sweep,
            hold=self._hold,
            enter=self._enter,
            record=self._record,
        )
        workflow.set_current_details(f"step {state.version} of {state.admission.total_steps}")

    def _enter(self, phase: RunPhase) -> None:
        self._control.enter(phase)
        workflow.upsert_search_attributes([STATE.value_set(phase.value)])

    def _wake(self) -> None:
        if self._admitted:
            self._dispatcher.wake()

    async def _hold(self, reason: str) -> None:
        """A call of the trainer outside a step finds no room on its disk; an empty reason: no longer."""
        self._control.hold(StepHeld(buffer=self._state.version, reason=reason))
        self._wake()

    async def _record(self, phase: RunPhase) -> None:
        status = self.status().model_copy(update={"phase": phase})
        await calls.record_run(status, summary=f"run is {phase}")
