"""The life of one engine as its instance's workflow sees it: what is done with it, at which version, and its budget.
Pure, with the caller's clock; used by `RolloutInstance`.

Promises: it serves only after a pull; it is at the version that was pulled last, and at none after a failure; once it
is stopped nothing follows.
"""

from ...schemas.messages.rollout import InstanceState
from ...schemas.messages.run import InstanceChanged, StartInstance
from ..machine import Machine, Table
from .budget import Budget

NO_VERSION = -1

_S = InstanceState
STEPS: Table[InstanceState] = {
    _S.STARTING: frozenset({_S.STARTING, _S.PULLING, _S.STOPPED}),
    _S.PULLING: frozenset({_S.SERVING, _S.STARTING, _S.STOPPED}),
    _S.SERVING: frozenset({_S.PAUSING, _S.STARTING, _S.STOPPED}),
    _S.PAUSING: frozenset({_S.PULLING, _S.STARTING, _S.STOPPED}),
    _S.STOPPED: frozenset(),
}
"""What is being done with the engine; any failure leads back to STARTING. A quarantine is no step of its own: the same
steps are tried in it, at longer intervals, and until they have led to SERVING people are told QUARANTINED."""


class Life:
    def __init__(self, start: StartInstance) -> None:
        self._instance = start.instance
        self._steps = Machine(start.instance, STEPS, InstanceState.STARTING)
        self.budget = Budget(start.restart_budget, start.restart_budget_heals_s, start.record)
        self.target = start.version
        """The newest version asked for."""
        self._version = NO_VERSION

    @property
    def state(self) -> InstanceState:
        if self.budget.quarantined and not self._steps.final:
            return InstanceState.QUARANTINED
        return self._steps.state

    @property
    def behind(self) -> bool:
        return self.target > self._version

    @property
    def line(self) -> str:
        """For the web UI."""
        return f"**{self.state}** v{self._version}, target v{self.target}, {self.budget.failures} failures"

    def pulls(self) -> None:
        self._steps.to(InstanceState.PULLING)

    def serves(self, version: int, now: float) -> None:
        self._steps.to(InstanceState.SERVING)
        self._version = version
        self.budget.served(now)

    def pauses(self) -> None:
        self._steps.to(InstanceState.PAUSING)

    def failed(self, now: float, for_good: bool = False) -> None:
        self._steps.to(InstanceState.STARTING)
        self._version = NO_VERSION
        self.budget.failed(now, for_good)

    def stopped(self) -> None:
        self._steps.to(InstanceState.STOPPED)
        self._version = NO_VERSION

    def seen(self, now: float, reason: str = "") -> InstanceChanged:
        """What the run and people are told."""
        quarantined = self.state is InstanceState.QUARANTINED
        return InstanceChanged(
            instance=self._instance,
            state=self.state,
            version=self._version,
            reason=reason,
            quarantined_s=self.budget.in_vain_s(now) if quarantined else 0.0,
        )
