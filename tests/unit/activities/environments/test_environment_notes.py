"""What people are told of an environment when their run is admitted."""

import pytest

from psrl.activities.environments import load
from psrl.activities.environments.load import environment_notes
from psrl.schemas.config import parse_config
from tests.support.runs import config_values


def notes(agentic: dict[str, object], monkeypatch: pytest.MonkeyPatch, why: str) -> tuple[str, ...]:
    monkeypatch.setattr(load, "unconfined", lambda: why)
    return environment_notes(parse_config(config_values("model", "train.jsonl", psrl={"agentic_rl": agentic})))


def test_programs_that_cannot_be_confined_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    runs_code: dict[str, object] = {"agent_loop": "multi_turn", "environment": "tools", "tools": ["code_runner"]}
    assert notes(runs_code, monkeypatch, "") == ()
    assert notes(runs_code, monkeypatch, "no namespaces") == (
        "the policy's programs can reach the network and read files, since they cannot be confined here: no namespaces",
    )
    assert notes({}, monkeypatch, "no namespaces") == ()
