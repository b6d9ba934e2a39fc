"""One rollout engine on behalf of one run: start, pull, serve, sync, restart, give back.

Started by the run, id `RUN/instance/rollout-0`; outlives the run's continue-as-new. Promises: the engine serves only
after a version was pulled, verified and probed; a failed update leaves it paused and is repaired by a new pull or a
restart, else the instance is quarantined; a quarantined one is tried again at growing intervals and re-admitted by a
pull that succeeds; an engine that can never serve the run is given back at once, with the reason; waiting for another
run's engine is no failure; the engine is given back when the run is gone (L11).
What is done with the engine and how often it may fail is decided by `Life`; here it is carried out.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from ...schemas.errors import EngineUnfit, InstanceBusy, PsrlError
    from ...schemas.ids import rollout_queue
    from ...schemas.messages.coordination import SyncAndMigStrategy, SyncRequest
    from ...schemas.messages.rollout import HoldRequest, InstanceCommand, PauseRequest, PullRequest
    from ...schemas.messages.run import InstanceChanged, LookAtRun, RunPhase, RunStatus, StartInstance
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.call import Call
    from ..calls.tasks import end, ended_after
    from ..failure import FAILS
    from .life import Life

Request = TypeVar("Request")
Result = TypeVar("Result")


@workflow.defn(failure_exception_types=FAILS)
class RolloutInstance:
    @workflow.init
    def __init__(self, start: StartInstance) -> None:
        self._start = start
        self._command = InstanceCommand(run_id=start.spec.run_id, instance=start.instance)
        self._life = Life(start)
        self._stopping = False
        self._orphaned = False
        self._unfit = ""
        """Why the engine can never serve this run."""

    @workflow.run
    async def run(self, start: StartInstance) -> str:
        while not self._stopping:
            try:
                await self._serve()
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                await self._failed(error)
            if not self._stopping and workflow.info().is_continue_as_new_suggested():
                self._roll_over()
        await self._give_back()
        return self._life.state.value

    @workflow.signal
    def sync(self, version: int) -> None:
        """Serve this version or a newer one as soon as possible. An older number changes nothing."""
        self._life.target = max(self._life.target, version)

    @workflow.signal
    def stop(self) -> None:
        """Shut the engine down and give the instance back."""
        self._stopping = True

    @workflow.query
    def status(self) -> InstanceChanged:
        return self._life.seen(workflow.time())

    # --- the life of the engine --------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Bring the engine up and keep it in step with the run, until `stop`, a failure, or a long history."""
        if not await self._start_engine():
            return
        hold = asyncio.create_task(self._hold())
        async with ended_after(hold):
            await self._unless_lost(hold, self._pull())
            while not self._stopping and not workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(lambda: self._needed or hold.done())
                if hold.done():
                    hold.result()
                elif self._life.behind and not self._stopping:
                    await self._unless_lost(hold, self._sync())

    @staticmethod
    async def _unless_lost(hold: "asyncio.Task[None]", work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, but fail with the lease: a host that died would let it wait for half an hour, and one that came
        back would refuse it all that time for want of an engine."""
        task = asyncio.create_task(work)
        await workflow.wait_condition(lambda: task.done() or hold.done())
        if not task.done():
            await end(task)
            hold.result()
        task.result()

    async def _start_engine(self) -> bool:
        """False: `stop` came while the engine was starting. An instance that another run holds is waited for as long as
        a start may take; a quarantined one asks again at its next try."""
        asked_at = workflow.time()
        while not self._stopping:
            try:
                return await self._start_once()
            except ActivityError as error:
                waited_s = workflow.time() - asked_at
                if (
                    not _raised(error, InstanceBusy)
                    or self._life.budget.spent
                    or waited_s >= self._start.start_timeout_s
                ):
                    raise
                await self._tell_run(f"waiting for another run: {_reason(error)}")
            await self._sleep_unless_stopped(settings.BUSY_RETRY_S)
        return False

    async def _start_once(self) -> bool:
        """Does not wait for the end of the start, which may take minutes, when `stop` comes."""
        call = replace(calls.start_engine, patience=timedelta(seconds=self._start.start_timeout_s))
        starting = asyncio.create_task(self._call(call, self._start.spec, "start engine"))
        await workflow.wait_condition(lambda: self._stopping or starting.done())
        if not starting.done():
            await end(starting)
            return False
        starting.result()
        return True

    async def _sync(self) -> None:
        await self._until_due()
        if self._stopping:
            return
        self._life.pauses()
        request = PauseRequest(**self._command.model_dump(), interrupt=self._start.interrupt)
        await self._call(calls.pause, request, f"pause: {self._start.mode}")
        await self._pull()

    async def _until_due(self) -> None:
        """Until the coordinator finds the moment good, for whatever version is the newest then; no longer than the run
        has chosen (L11). While the coordinator is away the instance goes on as it is: nothing that it interrupted could
        be routed anew."""
        if (strategy := self._start.strategy) is None:
            return
        until = workflow.time() + strategy.sync.max_wait_s
        while not self._stopping and (left_s := until - workflow.time()) > 0:
            asked = self._life.target
            asking = asyncio.create_task(self._ask_whether_due(strategy, asked, left_s))
            async with ended_after(asking):
                await workflow.wait_condition(
                    lambda asking=asking, asked=asked: (  # type: ignore[misc]
                        asking.done() or self._stopping or self._life.target != asked
                    )
                )
                answered = asking.done()
            if answered:
                asking.result()
                return

    async def _ask_whether_due(self, strategy: SyncAndMigStrategy, version: int, patience_s: float) -> None:
        request = SyncRequest(**self._command.model_dump(), version=version, strategy=strategy, mode=self._start.mode)
        call = replace(calls.sync_due, patience=timedelta(seconds=patience_s))
        try:
            answer = await call(request, summary=f"may it sync to v{version}? · {self._start.instance}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("%s syncs without the coordinator's word: %s", self._start.instance, error.cause)
        else:
            workflow.logger.info("%s syncs to v%d: %s", self._start.instance, version, answer.reason)

    async def _pull(self) -> None:
        """Load the newest version asked for, then admit requests. The engine is paused before, and after a failure."""
        self._life.pulls()
        version = await self._pull_newest()
        await self._call(calls.resume, self._command, f"serve v{version}")
        self._life.serves(version, workflow.time())
        await self._tell_run()

    async def _pull_newest(self) -> int:
        """A slow instance may find a version gone that was replaced long ago: what counts is the newest asked for."""
        while True:
            version = self._life.target
            request = PullRequest(**self._command.model_dump(), version=version)
            try:
                await self._call(calls.pull_weights, request, f"pull v{version}")
            except ActivityError as error:
                if is_cancelled_exception(error) or self._life.target == version:
                    raise
            else:
                return version

    async def _hold(self) -> None:
        """The lease on the engine: fails within seconds when the host or the engine dies, and looks once a minute
        whether the run still exists, which costs that one's history nothing. One that is on trial comes back as soon as
        the engine has given tokens."""
        while True:
            request = HoldRequest(**self._command.model_dump(), until_tokens=self._life.budget.on_trial)
            try:
                held = await self._call(calls.hold_engine, request, "hold engine")
            except ActivityError as error:
                if not _lease_ran_out(error):
                    raise
            else:
                if held.tokens:
                    self._life.budget.useful()
            await self._look_at_run()

    async def _look_at_run(self) -> None:
        request = LookAtRun(run_workflow_id=self._start.run_workflow_id)
        try:
            found = await calls.look_at_run(request, summary="is the run still there?")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            return  # nobody could tell: the next lease will
        if not found.open:
            self._stopping = self._orphaned = True

    async def _failed(self, error: ActivityError) -> None:
        """Count it, tell the run, and wait a while before the engine is started anew. One that is unfit stays so."""
        if _raised(error, EngineUnfit):
            self._stopping, self._unfit = True, _reason(error)
            return
        # A holder that did not let go in time is not asked again at once.
        self._life.failed(workflow.time(), for_good=_raised(error, InstanceBusy))
        await self._tell_run(_reason(error))
        await self._sleep_unless_stopped(self._life.budget.pause_s)

    async def _sleep_unless_stopped(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._stopping, timeout=seconds)

    async def _give_back(self) -> None:
        try:
            await self._call(calls.release_engine, self._command, "release")
        except ActivityError as error:
            workflow.logger.warning("%s was not given back: %s", self._start.instance, _reason(error))
        self._life.stopped()
        if self._orphaned:
            await self._record_end_of_run()
        else:
            await self._tell_run(self._unfit)

    async def _record_end_of_run(self) -> None:
        """A run that was terminated could not write down its end. One that ended by itself has: its record stays."""
        end = RunStatus(
            run_id=self._start.spec.run_id,
            phase=RunPhase.FAILED,
            reason="its workflow was closed from outside (terminated, or its history was deleted)",
            step=0,
            total_steps=0,
            version=0,
            live_groups=0,
            occupied_groups=0,
        )
        await calls.record_run(end, summary="run was closed from outside")

    def _roll_over(self) -> None:
        carried = {"version": self._life.target, "record": self._life.budget.record(workflow.time())}
        workflow.continue_as_new(self._start.model_copy(update=carried))

    # --- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _needed(self) -> bool:
        """Serving is not enough: there is something to do. A run that rests asks for nothing, but its instances' leases
        fill their histories all the same."""
        return self._stopping or self._life.behind or workflow.info().is_continue_as_new_suggested()

    async def _tell_run(self, reason: str = "") -> None:
        workflow.set_current_details(self._life.line)
        changed = self._life.seen(workflow.time(), reason[:500])
        run = workflow.get_external_workflow_handle(self._start.run_workflow_id)
        try:
            await run.signal("instance_changed", changed)
        except ApplicationError:
            # The run is closed: nobody will ever ask for this engine again.
            self._stopping = self._orphaned = True

    async def _call(self, call: Call[Request, Result], request: Request, summary: str) -> Result:
        workflow.set_current_details(self._life.line)
        on_host = call.on(rollout_queue(self._start.instance))
        return await on_host(request, summary=f"{summary} · {self._start.instance}")


def _lease_ran_out(error: ActivityError) -> bool:
    ends = {TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.START_TO_CLOSE}
    return isinstance(error.cause, ActivityTimeout) and error.cause.type in ends


def _raised(error: ActivityError, kind: type[PsrlError]) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == kind.__name__


def _reason(error: ActivityError) -> str:
    cause = error.cause
    named = isinstance(cause, ApplicationError) and cause.type  # Its text begins with the type.
    return f"{error.activity_type}: {cause if named else f'{type(cause).__name__}: {cause}'}"
