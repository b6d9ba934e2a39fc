"""One simulated run, from version 0 to its last step. Called by `compare.py`.

The run's own code decides: `Ledger` and `plan_wave` what may be started and trained on, the coordinator's `Fleet` with
its policies where it goes. Simulated are only the engines, the trainer and the time that a sync takes; nothing fails,
and a decision takes no time.
"""

from dataclasses import dataclass

from .fleet import SimulatedFleet
from .migrating import Migrating
from .result import Result
from .rollouts import Rollouts
from .scenario import Scenario
from .syncing import Syncing
from .timeline import Timeline
from .trainer import Trainer
from .world import World


@dataclass(frozen=True)
class Simulated:
    result: Result
    timeline: Timeline


def simulate(name: str, scenario: Scenario) -> Simulated:
    """The same scenario gives the same result."""
    return _Run(scenario).play(name)


class _Run:
    def __init__(self, scenario: Scenario) -> None:
        self._world = world = World.of(scenario)
        self._fleet = SimulatedFleet(world)
        self._rollouts = Rollouts(world, self._fleet)
        self._trainer = Trainer(world, self._rollouts)
        self._syncing = Syncing(world, self._fleet, self._rollouts)
        self._migrating = Migrating(world, self._fleet, self._rollouts, self._syncing)

    def play(self, name: str) -> Simulated:
        world, instances = self._world, self._fleet.instances
        self._settle()
        while not self._trainer.over:
            happened = world.clock.step()
            assert happened, f"{name} stands still at version {world.ledger.version}"
            if world.clock.idle_now:
                self._settle()
        for instance in instances:
            instance.count(world.clock.now)
            instance.engine.settle(world.clock.now)
        in_flight = self._rollouts.in_flight
        result = Result.of(name, world, instances, trainer_busy_s=self._trainer.busy_s, in_flight=in_flight)
        return Simulated(result, world.timeline)

    def _settle(self) -> None:
        """Everything of this moment has happened; now everybody may act on it. A batch first: what it drops leaves room
        in the engines, and what it takes room in the ledger."""
        self._syncing.tell()
        self._trainer.look(self._syncing.publish)
        self._syncing.look()
        self._rollouts.fill()
        if self._migrating.look():
            self._rollouts.fill()
        self._fleet.foresee(self._rollouts.changed)
