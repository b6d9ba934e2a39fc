"""The recorded traces: every admission, free count, batch, drop and blocking group, exactly."""

import json
from pathlib import Path
from typing import Any

import pytest

from psrl.schemas.ids import GroupId, Version
from psrl.workflows.ledger import Ledger, NotAdmissible

TRACES = json.loads((Path(__file__).parents[2] / "cases" / "ledger_traces.json").read_text())


def group(number: int) -> GroupId:
    return GroupId(str(number))


def groups(numbers: list[int]) -> tuple[GroupId, ...]:
    return tuple(group(number) for number in numbers)


def replay(ledger: Ledger, op: dict[str, Any]) -> None:
    match op["op"]:
        case "reserve" if op["admitted"]:
            ledger.reserve(Version(op["version"]), [group(op["group"])])
        case "reserve":
            with pytest.raises(NotAdmissible) as refused:
                ledger.reserve(Version(op["version"]), [group(op["group"])])
            assert refused.value.free == op["free_before"]
        case "free":
            assert ledger.free(Version(op["version"])) == op["expect"]
        case "occupy":
            ledger.occupy(group(op["group"]))
        case "release":
            ledger.release(group(op["group"]))
        case "publish":
            ledger.publish(Version(op["version"]))
        case "consume":
            ready = ledger.ready
            done = ledger.consume()
            assert done.buffer == op["buffer"]
            assert done.taken == (None if op["taken"] is None else groups(op["taken"]))
            assert ready == (done.taken is not None)
            assert done.dropped == groups(op["dropped"])
            assert done.blocking == groups(op["blocking"])
        case other:
            pytest.fail(f"unknown operation {other!r}")


@pytest.mark.parametrize("number", range(len(TRACES)))
def test_trace_is_reproduced_exactly(number: int) -> None:
    trace = TRACES[number]
    ledger = Ledger(**{key: trace[key] for key in ("staleness", "batch_groups", "offered_groups")})
    for op in trace["ops"]:
        replay(ledger, op)
