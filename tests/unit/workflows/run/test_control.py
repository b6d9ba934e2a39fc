"""The phase of a run and what people ask of it."""

import pytest

from psrl.schemas.errors import InvariantViolated
from psrl.schemas.messages.run import RunPhase, StepHeld
from psrl.workflows.machine import reachable
from psrl.workflows.run.control import PHASES, Control


def test_every_phase_but_paused_can_be_reached_and_only_the_ends_are_final() -> None:
    assert reachable(PHASES, RunPhase.ADMITTING) == set(RunPhase) - {RunPhase.PAUSED}
    final = {phase for phase, following in PHASES.items() if not following}
    assert final == {RunPhase.DONE, RunPhase.STOPPED, RunPhase.FAILED}


def test_a_run_cannot_skip_a_phase() -> None:
    control = Control()
    with pytest.raises(InvariantViolated, match="admitting -> running"):
        control.enter(RunPhase.RUNNING)
    assert control.phase is RunPhase.ADMITTING


@pytest.mark.parametrize("phase", [RunPhase.ADMITTING, RunPhase.STARTING, RunPhase.RUNNING, RunPhase.STOPPING])
def test_a_run_that_was_asked_to_stop_is_stopping_whatever_it_still_finishes(phase: RunPhase) -> None:
    control = Control(phase=phase, paused=True)
    control.stop(now=False)
    assert control.shown is RunPhase.STOPPING


def test_a_resume_that_comes_too_late_is_told() -> None:
    control = Control(phase=RunPhase.RUNNING, paused=True)
    control.resume()
    assert (control.paused, control.notice) == (False, "")
    control.stop(now=False)
    control.resume()
    assert control.notice == "`resume` was not heeded: the run is stopping. Resume it once it has ended."
    assert control.stopping


@pytest.mark.parametrize("phase", [RunPhase.STOPPING, RunPhase.DONE, RunPhase.FAILED])
def test_a_pause_of_a_run_that_ends_is_told(phase: RunPhase) -> None:
    control = Control(phase=phase)
    control.pause()
    assert not control.paused
    assert f"`pause` was not heeded: the run is {phase}" in control.notice


def test_a_running_run_shows_as_paused_while_a_step_is_held() -> None:
    control = Control(phase=RunPhase.RUNNING)
    control.hold(StepHeld(buffer=1, reason="the disk is full"))
    assert control.shown is RunPhase.PAUSED
    control.hold(StepHeld(buffer=1, reason=""))
    assert control.shown is RunPhase.RUNNING
