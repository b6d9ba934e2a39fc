"""The simulated trainer: waits for a batch, takes time, publishes."""

from collections.abc import Callable

from ...schemas.ids import Version
from .rollouts import Rollouts
from .world import World


class Trainer:
    def __init__(self, world: World, rollouts: Rollouts) -> None:
        self._costs, self._clock, self._ledger = world.scenario.simulate, world.clock, world.ledger
        self._rollouts, self._tally, self._timeline = rollouts, world.tally, world.timeline
        self._busy = False
        self.busy_s = 0.0

    @property
    def over(self) -> bool:
        return self._ledger.version >= self._costs.steps

    def look(self, published: Callable[[Version], None]) -> None:
        """Take the batch if it is there."""
        if self._busy or self.over or not self._ledger.ready:
            return
        before, began = self._tally.trained_tokens, self._clock.now
        self._rollouts.consume()
        self._busy = True
        seconds = self._costs.train_s + self._costs.train_s_per_token * (self._tally.trained_tokens - before)

        def publish() -> None:
            self._busy = False
            self.busy_s += seconds
            self._timeline.trained(self._ledger.version, began, self._clock.now)
            self._ledger.publish(Version(self._ledger.version + 1))
            published(self._ledger.version)

        self._clock.after(seconds, publish)
