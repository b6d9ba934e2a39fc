"""A run's own trace, from a real store, under other settings."""

import json

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from psrl.schemas.errors import DataError, RunUnknown
from psrl.schemas.stack import Stack
from psrl.workers.cli.commands import app
from psrl.workers.simulate.trace import recorded_by
from tests.support.steps import step_report
from tests.support.store_rows import add_run, add_step, add_trajectory

pytestmark = pytest.mark.integration


@pytest.fixture
def run(engine: Engine) -> str:
    """Two steps of 2 s each; alone an engine takes 0.5 s a token. Version 1 is published at second 6, and the first
    token of it is sampled at second 7."""
    add_run(engine, "traced")
    add_step(engine, step_report(0, run="traced", started=4, published=6, waited=1))
    add_step(engine, step_report(1, run="traced", started=10, published=12, waited=2))
    add_trajectory(engine, "traced", "000000", [(0, 0, 2, [1, 2, 3, 4])])
    add_trajectory(engine, "traced", "000001", [(0, 2, 3, [5, 6])])
    add_trajectory(engine, "traced", "000002", [(1, 7, 10, [7] * 6)], buffer=1)
    return "traced"


def psrl(stack: Stack, *arguments: str) -> Result:
    return CliRunner(env={"PSRL_HOME": str(stack.home)}).invoke(app, list(arguments))


def test_a_trace_holds_what_was_measured(stack: Stack, run: str) -> None:
    trace = recorded_by(stack, run)
    costs = trace.sections["simulate"]
    assert costs["lengths"] == {"kind": "recorded", "groups": [[4], [2], [6]]}
    assert (costs["prompt_tokens"], costs["steps"], costs["train_s"], costs["score_s"]) == (2, 2, 2.0, 0.0)
    assert costs["sync_s"] == pytest.approx(1.0)
    engine = costs["engine"]
    assert engine["other_latency_b"] + engine["other_latency_k"] == pytest.approx(0.5)
    assert trace.itself == "run traced itself: 1,028.6 steps/h, trainer idle 43%"


def test_a_run_is_replayed_with_other_settings(stack: Stack, run: str) -> None:
    small = ["psrl.staleness_buffer_entries=2", "simulate.steps=10"]
    result = psrl(stack, "simulate", "--run", run, *small, "--with", "psrl.staleness=2", "--json")
    assert result.exit_code == 0, result.output
    as_it_was, further = json.loads(result.stdout)
    assert as_it_was["staleness"] == {"0": 20}
    assert set(further["staleness"]) <= {"0", "1", "2"}
    assert further["times_first"] > 1.1
    assert as_it_was["mean_length"] == pytest.approx((4 + 2 + 6) / 3, rel=0.05)


def test_a_run_that_cannot_be_replayed_is_told_of(stack: Stack, engine: Engine) -> None:
    with pytest.raises(RunUnknown, match="no run 'other'"):
        recorded_by(stack, "other")
    add_run(engine, "young")
    with pytest.raises(DataError, match="has trained no step yet"):
        recorded_by(stack, "young")
