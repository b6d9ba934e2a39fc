"""Requests that move from busy instances to idle ones, as the run's own migration policy says. They are routed anew
with their prefix, like any interrupted one."""

from ..coordinator.policies.migration.contract import MigrationSnapshot
from ..coordinator.policies.migration.registry import migration_policy
from .engine import Sequence as Answer
from .fleet import SimulatedFleet
from .rollouts import Rollouts
from .syncing import Syncing
from .world import World


class Migrating:
    def __init__(self, world: World, fleet: SimulatedFleet, rollouts: Rollouts, syncing: Syncing) -> None:
        self._fleet, self._rollouts, self._syncing, self._tally = fleet, rollouts, syncing, world.tally
        self._policy = migration_policy(world.scenario.psrl.rollout_coordination.sync_and_mig_strategy.mig)
        self._moving: list[Answer] = []

    def look(self) -> bool:
        """Whether answers are on the move now. One move at a time, and none while an instance syncs: what is
        interrupted then moves anyway."""
        if self._policy is None or not self._syncing.at_rest or any(map(self._homeless, self._moving)):
            return False
        moved = self._policy(MigrationSnapshot(self._fleet.loads(), self._rollouts.queued))
        if moved is None:
            return False
        self._moving = self._fleet.take(moved.donor, moved.requests)
        self._rollouts.back(self._moving, moved.receiver)
        self._tally.moved += len(self._moving)
        return True

    def _homeless(self, answer: Answer) -> bool:
        return not answer.over and not self._fleet.has(answer)
