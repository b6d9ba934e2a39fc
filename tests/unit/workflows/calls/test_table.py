"""A process that dies while it works is noticed within seconds, whatever it was doing, and every call ends (L11)."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from psrl.activities import signatures
from psrl.workflows.calls import settings, table
from psrl.workflows.calls.call import Call, LocalCall

WORKFLOWS = Path(__file__).parents[4] / "workflows"
CALLS = {name: call for name, call in vars(table).items() if isinstance(call, Call)}
LOCAL_CALLS = {name: call for name, call in vars(table).items() if isinstance(call, LocalCall)}
LIMITED_BY_CALLERS = {"score", "generate", "step_environment", "run_agent"}
"""They take what is left of a group's lifetime (`Call.within`)."""
DIRECT = {"execute_activity", "execute_local_activity", "start_activity", "start_local_activity"}


def test_every_signature_has_one_entry_under_its_name() -> None:
    named = {name for name, value in vars(signatures).items() if hasattr(value, "__temporal_activity_definition")}
    assert named == CALLS.keys() | LOCAL_CALLS.keys()
    assert {name: call.activity.__name__ for name, call in (CALLS | LOCAL_CALLS).items()} == {n: n for n in named}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_may_take_long_has_a_heartbeat(name: str) -> None:
    call = CALLS[name]
    brief = call.start_to_close is not None and call.start_to_close <= settings.SHORT
    assert brief or (call.heartbeat is not None and call.heartbeat <= settings.TRAIN_HEARTBEAT)


@pytest.mark.parametrize("name", sorted(CALLS.keys() - LIMITED_BY_CALLERS))
def test_a_call_ends_by_its_patience_or_after_a_number_of_attempts(name: str) -> None:
    call = CALLS[name]
    bounded_attempts = call.start_to_close is not None and call.retry.maximum_attempts > 0
    assert call.patience is not None or bounded_attempts


@pytest.mark.parametrize("name", LOCAL_CALLS)
def test_a_local_call_has_a_number_of_attempts(name: str) -> None:
    """Between attempts the SDK heeds no schedule-to-close timeout."""
    assert LOCAL_CALLS[name].retry.maximum_attempts > 0


def test_workflows_call_activities_through_the_table_alone() -> None:
    direct = [
        f"{file.relative_to(WORKFLOWS)}:{call.lineno}"
        for file in sorted(WORKFLOWS.rglob("*.py"))
        if file.parent.name != "calls"
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in DIRECT
    ]
    assert direct == []


def test_a_call_on_a_queue_is_the_same_call_elsewhere() -> None:
    assert table.generate.on("q") == replace(table.generate, queue="q")
