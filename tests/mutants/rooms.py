"""What is mutated, and the tests that must notice."""

from dataclasses import dataclass

UNIT, PROPERTY, WORKFLOW, INTEGRATION = "tests/unit", "tests/property", "tests/workflow", "tests/integration"


@dataclass(frozen=True)
class Room:
    code: str
    tests: tuple[str, ...]
    timeout_s: float
    """Of one run of the tests; a mutant that takes longer is noticed."""


ROOMS = (
    Room(
        "workflows/ledger.py",
        (
            f"{UNIT}/workflows/test_ledger.py",
            f"{UNIT}/workflows/test_ledger_traces.py",
            f"{PROPERTY}/test_ledger_machine.py",
        ),
        300,
    ),
    Room("workflows/machine.py", (f"{UNIT}/workflows/test_machine.py",), 60),
    Room("workflows/calls", (f"{UNIT}/workflows", WORKFLOW), 900),
    Room("workflows/run", (f"{UNIT}/workflows", PROPERTY, WORKFLOW), 900),
    Room("workflows/rollout", (f"{UNIT}/workflows", PROPERTY, WORKFLOW), 900),
    Room("workflows/training", (f"{UNIT}/workflows", WORKFLOW), 900),
    Room("workers/rollout", (f"{UNIT}/workers/rollout", f"{INTEGRATION}/test_rollout_generate.py"), 300),
    Room(
        "activities/store",
        (
            f"{UNIT}/activities/store",
            *(f"{INTEGRATION}/test_store_{part}.py" for part in ("admission", "batches", "draw", "records", "score")),
        ),
        300,
    ),
)


def room_of(code: str) -> Room:
    """A room, or one file of it with the room's tests."""
    fits = [room for room in ROOMS if code == room.code or code.startswith(f"{room.code}/")]
    if not fits:
        raise SystemExit(f"{code!r} is in no room: {', '.join(room.code for room in ROOMS)}")
    return Room(code, fits[0].tests, fits[0].timeout_s)
