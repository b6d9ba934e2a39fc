"""The workflows of a run's rollout instances: started, kept in step, started anew, stopped.

Used by `TrainingRun` and its sweep; what is known of the instances is in `Fleet`. Instances are children that outlive
the run's continue-as-new, so a later execution hears of their end only by asking (`sweep`).
"""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from ...schemas.config import RunConfig
    from ...schemas.config.sync_and_mig import SyncMethod
    from ...schemas.ids import InstanceId, RunId, instance_id, instance_workflow
    from ...schemas.messages.rollout import EngineSpec
    from ...schemas.messages.run import EndedInstance, StartInstance
    from ...schemas.search import attributes
    from ..calls import settings
    from ..calls.lifetime import while_alive
    from ..rollout.instance import RolloutInstance
    from .faults import never_came_up, no_instance_left
    from .state import RunState


def configured(config: RunConfig) -> list[InstanceId]:
    """The instances that a run begins with."""
    return [instance_id(number) for number in range(config.psrl.deployment.n_rollout_instances)]


class Instances:
    def __init__(self, run_id: RunId, state: RunState) -> None:
        self._run_id, self._state = run_id, state

    async def start(self) -> None:
        for name in configured(self._state.config):
            await self._start(name)

    async def first_serves(self) -> None:
        """The others may follow. Fails naming every instance that did not come up."""
        fleet = self._state.fleet
        limit = timedelta(seconds=self._state.config.psrl.deployment.start_timeout_s)
        try:
            await while_alive(lambda: fleet.serving or fleet.all_quarantined_or_stopped, limit)
        except TimeoutError as error:
            raise never_came_up(fleet.described(), limit, "their logs are rollout-*.log") from error
        if not fleet.serving:
            # A start that keeps failing is a fault of the set-up: nothing is gained by trying for longer.
            raise no_instance_left(fleet)

    async def sync(self) -> None:
        """To the newest version: each when its moment comes."""
        self._state.unannounced = False
        self._state.fleet.published(self._state.version, workflow.time())
        await self._signal("sync", self._state.version)

    async def stop(self) -> None:
        await self._signal("stop")

    async def stopped(self) -> None:
        """Wait until every engine is shut down. One that does not answer is not waited for: its lease ends anyway."""
        fleet = self._state.fleet
        try:
            await workflow.wait_condition(lambda: not fleet.living, timeout=settings.LEASE)
        except TimeoutError:
            workflow.logger.warning("not released within %s: %s", settings.LEASE, fleet.described())

    async def settle(self, ended: Iterable[EndedInstance]) -> None:
        """Start anew what should not have ended, within its budget."""
        for one in ended:
            workflow.logger.warning("%s has ended: %s", one.instance, one.reason or "it was stopped")
            if self._state.fleet.end(one, workflow.time(), self._state.config.psrl.deployment):
                await self._start(one.instance)

    async def _start(self, name: InstanceId) -> None:
        config = self._state.config
        deployment, coordination = config.psrl.deployment, config.psrl.rollout_coordination
        strategy = coordination.sync_and_mig_strategy
        self._state.fleet.add(name, workflow.time())
        start = StartInstance(
            run_workflow_id=workflow.info().workflow_id,
            instance=name,
            spec=EngineSpec.of(self._run_id, config),
            version=self._state.version,
            interrupt=coordination.partial_rollout.enable,
            strategy=None if strategy.method is SyncMethod.GREEDY else strategy,
            start_timeout_s=deployment.start_timeout_s,
            restart_budget=deployment.restart_budget,
            restart_budget_heals_s=deployment.restart_budget_heals_s,
        )
        try:
            await workflow.start_child_workflow(
                RolloutInstance.run,
                start,
                id=instance_workflow(self._run_id, name),
                parent_close_policy=ParentClosePolicy.ABANDON,
                static_summary=f"{name} for {self._run_id}",
                search_attributes=attributes(self._run_id),
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.warning("%s lives after all", name)

    async def _signal(self, signal: str, *args: object) -> None:
        await asyncio.gather(*(self._signal_one(name, signal, args) for name in self._state.fleet.living))

    async def _signal_one(self, name: InstanceId, signal: str, args: tuple[object, ...]) -> None:
        handle = workflow.get_external_workflow_handle(instance_workflow(self._run_id, name))
        try:
            await handle.signal(signal, args=args)
        except ApplicationError as error:
            workflow.logger.warning("%s took no signal `%s`: %s", name, signal, error)
            self._state.fleet.missed = True


async def retire_earlier(run_id: RunId, config: RunConfig) -> None:
    """Wait until no instance workflow of an earlier execution is left: one whose run was closed from outside notices
    it within a lease, and writes the run down as failed."""
    for name in configured(config):
        old = workflow.get_external_workflow_handle(instance_workflow(run_id, name))
        for _ in range(2 * int(settings.LEASE.total_seconds())):
            try:
                await old.signal("stop")
            except ApplicationError:
                break
            await workflow.sleep(1)
        else:
            raise never_came_up(f"the end of {name} of the earlier execution", 2 * settings.LEASE, "")
