"""The rollout instances of a run and what it knows of each. Pure; part of the run's state.

Which instances a run has is written here and nowhere else. Promise: an instance whose workflow ended without giving
its engine back is started anew within its budget, else it counts as stopped, with the reason.
"""

from ...schemas.config.psrl import Deployment
from ...schemas.ids import InstanceId
from ...schemas.messages.rollout import InstanceState
from ...schemas.messages.run import EndedInstance, InstanceChanged
from .carried import Carried

NOT_SERVING = -1


class Instance(Carried):
    told: InstanceChanged | None = None
    """The last it said; what the run found out about its workflow counts as said."""
    started_at: float = 0.0
    """When its workflow was last started, by workflow time."""
    behind_since: float | None = None
    """When a newer version was announced than it serves; null while it is in step."""
    restarts: int = 0
    """Times its workflow was started anew since one lived for `restart_budget_heals_s`."""

    @property
    def state(self) -> InstanceState | None:
        return None if self.told is None else self.told.state

    def __str__(self) -> str:
        if self.told is None:
            return "no report"
        return f"{self.told.state}: {self.told.reason or 'no reason given'}"


class Fleet(Carried):
    instances: dict[InstanceId, Instance] = {}
    announced: int = 0
    """The newest version that the instances were told of."""
    missed: bool = False
    """One that should live took no signal: the sweep looks after all of them at once."""

    def add(self, name: InstanceId, now: float) -> None:
        """Its workflow was started, for the first time or anew."""
        self.instances.setdefault(name, Instance()).started_at = now

    def hear(self, changed: InstanceChanged) -> bool:
        """False: it is none of this run's."""
        if changed.instance not in self.instances:
            return False
        instance = self.instances[changed.instance]
        instance.told = changed
        if changed.state is not InstanceState.SERVING or changed.version >= self.announced:
            instance.behind_since = None
        return True

    def published(self, version: int, now: float) -> None:
        """The instances are told of it."""
        self.announced = version
        for instance in self.instances.values():
            if instance.state is InstanceState.SERVING and instance.behind_since is None:
                instance.behind_since = now

    def end(self, ended: EndedInstance, now: float, limits: Deployment) -> bool:
        """The instance's workflow is closed; whether it is to be started anew."""
        instance = self.instances[ended.instance]
        if instance.state is InstanceState.STOPPED:
            return False
        if now - instance.started_at >= limits.restart_budget_heals_s:
            instance.restarts = 0
        again = not ended.stopped and instance.restarts < limits.restart_budget
        instance.restarts += again
        lost = f"{ended.reason} (restarted {instance.restarts} times)" if not (again or ended.stopped) else ""
        instance.told = InstanceChanged(
            instance=ended.instance,
            state=InstanceState.STARTING if again else InstanceState.STOPPED,
            version=NOT_SERVING,
            reason=lost or ended.reason or "it was stopped",
        )
        return again

    @property
    def living(self) -> tuple[InstanceId, ...]:
        """Those that have not stopped."""
        return tuple(name for name, one in self.instances.items() if one.state is not InstanceState.STOPPED)

    @property
    def versions(self) -> set[int]:
        """That are served."""
        told = [one.told for one in self.instances.values()]
        return {last.version for last in told if last is not None and last.state is InstanceState.SERVING}

    @property
    def serving(self) -> bool:
        return any(instance.state is InstanceState.SERVING for instance in self.instances.values())

    @property
    def all_quarantined_or_stopped(self) -> bool:
        gone = {InstanceState.QUARANTINED, InstanceState.STOPPED}
        return all(instance.state in gone for instance in self.instances.values())

    def none_left(self, patience_s: float) -> bool:
        """Every instance has stopped, or has kept failing for longer than the run will wait. It is the failed try that
        counts, not the clock: a stack that was down for a night gets its chance when it is up again."""
        return bool(self.instances) and all(
            told is not None
            and (
                told.state is InstanceState.STOPPED
                or (told.state is InstanceState.QUARANTINED and told.quarantined_s >= patience_s)
            )
            for told in (instance.told for instance in self.instances.values())
        )

    def described(self) -> str:
        return ", ".join(f"{name} ({instance})" for name, instance in self.instances.items())
