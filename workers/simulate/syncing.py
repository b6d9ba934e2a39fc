"""When instances take up a version, and how: the run's own sync policy says when, the rest is what `RolloutInstance`
does: pause, pull, serve.

Promise: an instance that is behind syncs at the latest after `sync.max_wait_s`, whatever its policy says.
"""

from functools import partial

from ...schemas.config.sync_and_mig import SyncMethod, SyncMode
from ...schemas.ids import InstanceId, Version
from ...schemas.messages.rollout import InstanceState
from ...workflows.run.seamless import kept_back
from ..coordinator.policies.load import InstanceLoad
from ..coordinator.policies.sync.contract import SyncSnapshot
from ..coordinator.policies.sync.registry import sync_policy
from .fleet import SimulatedFleet
from .instance import Instance
from .rollouts import Rollouts
from .world import World


class Syncing:
    def __init__(self, world: World, fleet: SimulatedFleet, rollouts: Rollouts) -> None:
        self._clock, self._timeline, self._fleet, self._rollouts = world.clock, world.timeline, fleet, rollouts
        coordination = world.scenario.psrl.rollout_coordination
        chosen = coordination.sync_and_mig_strategy
        self._mode, self._sync_s = coordination.partial_rollout.mode, world.scenario.simulate.sync_s
        self._policy, self._max_wait_s = sync_policy(chosen), chosen.sync.max_wait_s
        self._greedy = chosen.method is SyncMethod.GREEDY
        self._ledger, self._seamless = world.ledger, chosen.sync.seamless_train_version
        self._published = self._told = Version(0)
        """`_told`: the newest that instances know of."""
        self._behind_since = 0.0

    @property
    def at_rest(self) -> bool:
        """Every instance serves."""
        return all(instance.state is InstanceState.SERVING for instance in self._fleet.instances)

    def publish(self, version: Version) -> None:
        self._published = version
        self.tell()

    def tell(self) -> None:
        """Instances of the newest version, unless it is kept back for a while. Looked at before a batch is taken: once
        that is complete there is no reason left to."""
        served = {instance.version for instance in self._fleet.instances}
        if self._told == self._published or kept_back(self._ledger, self._seamless, served):
            return
        self._told, self._behind_since = self._published, self._clock.now
        if not self._greedy:
            self._clock.after(self._max_wait_s, lambda: None)  # Then it is looked at again.

    def look(self) -> None:
        """Begin what may begin now."""
        for instance in self._fleet.instances:
            behind = instance.version < self._told
            if instance.state is InstanceState.SERVING and behind and self._due(instance):
                self._pause(instance)
            if instance.state is InstanceState.PAUSING and instance.engine.idle:
                self._pull(instance)

    def _due(self, instance: Instance) -> bool:
        if self._greedy or self._clock.now - self._behind_since >= self._max_wait_s:
            return True
        loads: dict[InstanceId, InstanceLoad] = {load.instance: load for load in self._fleet.loads()}
        snapshot = SyncSnapshot(
            instance=instance.name,
            target=self._told,
            instances=loads,
            mode=self._mode,
            queued=self._rollouts.queued,
            admits=self._rollouts.admits({load.version for load in loads.values()} | {self._told}),
        )
        return self._policy(snapshot).due

    def _pause(self, instance: Instance) -> None:
        self._fleet.touch(instance)
        instance.state = InstanceState.PAUSING
        if self._mode is SyncMode.IN_PLACE:
            instance.engine.pause(self._clock.now)
            self._pull(instance)
        elif self._mode is SyncMode.INTERRUPT:
            self._rollouts.back(self._fleet.interrupt(instance))
        # Else its engine is idle some time.

    def _pull(self, instance: Instance) -> None:
        self._fleet.touch(instance)
        instance.state = InstanceState.PULLING
        serve = partial(self._serve, instance, self._told, self._clock.now)
        self._clock.after(self._sync_s, serve)

    def _serve(self, instance: Instance, version: Version, begin: float) -> None:
        self._fleet.touch(instance)
        instance.state, instance.version = InstanceState.SERVING, version
        instance.engine.resume(self._clock.now)
        self._timeline.synced(instance.number, begin, self._clock.now)
