"""The phase of a run, and what people have asked of it. Pure; part of the run's state."""

from ...schemas.messages.run import RunPhase, StepHeld
from ..machine import Machine, Table
from .carried import Carried

_P = RunPhase
PHASES: Table[RunPhase] = {
    _P.ADMITTING: frozenset({_P.STARTING, _P.FAILED}),
    _P.STARTING: frozenset({_P.RUNNING, _P.FAILED}),
    _P.RUNNING: frozenset({_P.STOPPING, _P.FAILED}),
    _P.STOPPING: frozenset({_P.DONE, _P.STOPPED, _P.FAILED}),
    _P.DONE: frozenset(),
    _P.STOPPED: frozenset(),
    _P.FAILED: frozenset(),
}
"""From each phase, the phases that may follow. PAUSED is none of them: it is how RUNNING shows while nothing new may
start."""
EARLY = frozenset({_P.ADMITTING, _P.STARTING, _P.RUNNING})


class Control(Carried):
    phase: RunPhase = RunPhase.ADMITTING
    reason: str = ""
    """Why the run failed."""
    paused: bool = False
    stopping: bool = False
    abandoning: bool = False
    """The step in progress is not waited for."""
    held: StepHeld | None = None
    """What a step waits for that people must provide."""
    notice: str = ""
    """A request that was not heeded, and why."""

    def enter(self, phase: RunPhase) -> None:
        machine = Machine("run", PHASES, self.phase)
        machine.to(phase)
        self.phase = machine.state

    def pause(self) -> None:
        if self._heeds("pause"):
            self.paused = True

    def resume(self) -> None:
        if self._heeds("resume"):
            self.paused = False

    def stop(self, now: bool) -> None:
        self.stopping = True
        self.abandoning |= now

    def hold(self, held: StepHeld) -> None:
        """An empty reason: no longer."""
        self.held = held if held.reason else None

    @property
    def resting(self) -> bool:
        """Nothing new is started: somebody paused the run, or a step is held."""
        return self.paused or self.held is not None

    @property
    def ended(self) -> bool:
        return not PHASES[self.phase]

    @property
    def shown(self) -> RunPhase:
        """The phase as people see it: a run that was asked to stop is stopping, whatever it still has to finish."""
        if self.stopping and self.phase in EARLY:
            return RunPhase.STOPPING
        return RunPhase.PAUSED if self.resting and self.phase is RunPhase.RUNNING else self.phase

    def _heeds(self, request: str) -> bool:
        """A run that is ending neither pauses nor resumes; it must not look as if it would."""
        if self.stopping or self.phase not in EARLY:
            self.notice = f"`{request}` was not heeded: the run is {self.shown}. Resume it once it has ended."
            return False
        return True
