"""Turns that an engine which is alive fails again and again."""

from psrl.schemas.ids import InstanceId
from psrl.schemas.messages.rollout import Placement, TurnFailure, TurnResult
from psrl.workflows.rollout.trajectory import Trajectory, TrajectoryState
from psrl.workflows.rollout.turns import MAX_DEFECTS, Turns

DEFECT = TurnFailure(type="ZeroDivisionError", message="of the engine", retryable=True, defect=True)
DIED = TurnFailure(type="EngineUnavailable", message="the engine died", retryable=True)


def failed_with(failures: list[TurnFailure], new_tokens: int = 0) -> TrajectoryState:
    """The state after so many failures in a row, of which each call also gave `new_tokens`."""
    trajectory = Trajectory(0)
    turns = Turns([trajectory], needed=1)
    for number, failure in enumerate(failures):
        assert turns.route() == (0,), f"waits for an instance after {number} failures"
        (share,) = turns.placed([Placement(index=0, instance=InstanceId(f"rollout-{number % 2}"), version=0)])
        turns.answered(share, [TurnResult(index=0, failure=failure, new_tokens=new_tokens)])
        turns.paused(turns.pausing(share))
    return trajectory.state


def test_a_turn_that_every_engine_fails_is_given_up_after_a_while() -> None:
    assert failed_with([DEFECT] * (MAX_DEFECTS - 1)) is TrajectoryState.INTERRUPTED
    assert failed_with([DEFECT] * MAX_DEFECTS) is TrajectoryState.FAILED


def test_engines_that_die_are_no_defect_of_the_turn() -> None:
    assert failed_with([DIED] * (3 * MAX_DEFECTS)) is TrajectoryState.INTERRUPTED


def test_a_turn_that_makes_progress_between_its_failures_is_not_given_up() -> None:
    assert failed_with([DEFECT] * (3 * MAX_DEFECTS), new_tokens=1) is TrajectoryState.INTERRUPTED
