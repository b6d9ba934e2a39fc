"""Fitting the cost model, and what is measured for it."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psrl.schemas.config import RunConfig, load_config
from psrl.schemas.cost_model import CostModel, layout, read_cost_model
from psrl.schemas.errors import UserError
from psrl.workers.calibrate.calibrate import Calibration, calibrate, write_entry
from psrl.workers.calibrate.fit import Fit, fit
from psrl.workers.calibrate.measured import StepTime
from psrl.workers.calibrate.profile import Stream, steps_of

LOADS = [(n, n * length) for n in (1, 2, 4, 8, 16, 32, 64) for length in (100, 1000, 8000)]


def cost(threshold: float, kink: int, per_request: float, per_token: float) -> CostModel:
    return CostModel(
        other_threshold=threshold,
        other_latency_b=threshold - per_request * kink,
        other_latency_k=per_request,
        attn_latency_b=0.0,
        attn_latency_k=per_token,
    )


def steps(model: CostModel) -> list[StepTime]:
    return [StepTime(n, t, model.latency(n, t)) for n, t in LOADS]


@settings(max_examples=50, deadline=None)
@given(st.floats(1e-3, 1e-1), st.sampled_from([0, 1, 2, 4, 8, 16, 32]), st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-6))
def test_an_engine_that_is_as_the_model_says_is_found_again(
    threshold: float, kink: int, per_request: float, per_token: float
) -> None:
    model = cost(threshold, kink, per_request, per_token)
    found = fit(steps(model))
    assert found.worst_error < 1e-6
    assert found.cost.latency(24, 5000) == pytest.approx(model.latency(24, 5000), rel=1e-2)


def test_an_engine_that_is_not_has_its_error_told() -> None:
    noisy = [
        StepTime(one.requests, one.kv_tokens, one.seconds * (1.1 if i % 2 else 0.9))
        for i, one in enumerate(steps(cost(0.01, 8, 1e-4, 1e-7)))
    ]
    found = fit(noisy)
    assert 0.03 < found.mean_error < 0.12 < found.worst_error + 0.06


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10**6), st.floats(1e-4, 10)), min_size=4, max_size=20))
def test_no_coefficient_is_ever_negative(measured: list[tuple[int, int, float]]) -> None:
    found = fit([StepTime(*one) for one in measured])
    assert found.cost.other_threshold >= 0
    assert found.cost.latency(1, 0) > 0


def test_too_few_loads_are_refused() -> None:
    with pytest.raises(UserError, match="only 3 loads could be measured, 4 are needed"):
        fit(steps(cost(0.01, 8, 1e-4, 1e-7))[:3])


def test_a_step_counts_while_all_decode_by_how_many_do() -> None:
    """The first chunk ends a prefill; whoever ends early is no longer counted."""
    long = Stream(100, at=[1.0, 1.4, 1.8, 2.2, 2.4], tokens=[4, 4, 4, 4, 4])
    late = Stream(100, at=[1.4, 1.8, 2.2], tokens=[4, 4, 4])
    alone, together = steps_of([long, late])
    assert (alone.requests, alone.kv_tokens, alone.seconds) == (1, 118.0, pytest.approx(0.05))
    assert (together.requests, together.seconds) == (2, pytest.approx(0.1))
    assert together.kv_tokens == pytest.approx(2 * 110)


def test_an_entry_is_written_beside_those_of_other_engines(tmp_path: Path) -> None:
    path, model = tmp_path / "cost.json", cost(0.01, 8, 1e-4, 1e-7)
    path.write_text(json.dumps({"TP8_PP1": {"other_threshold": 1}}))
    write_entry(path, Calibration(layout(), tuple(steps(model)), Fit(model, 0.03, 0.1)), "m")
    assert read_cost_model(str(path), layout()) == model
    written = json.loads(path.read_text())
    assert written["TP8_PP1"] == {"other_threshold": 1}
    assert written["TP1_PP1"]["fit"] == {"model": "m", "loads": 21, "mean_error": 0.03, "worst_error": 0.1}


def test_a_file_that_is_no_cost_model_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(UserError, match="exists and is no JSON"):
        write_entry(path, Calibration(layout(), (), Fit(cost(0.01, 8, 1e-4, 1e-7), 0, 0)), "m")
    assert path.read_text() == "mine"


async def test_an_engine_is_measured_and_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSRL_SCRIPT", json.dumps({"token_s": 0.001}))
    said: list[str] = []
    done = await calibrate(small(), 4, said.append, "tests.support.scripted_engine:ScriptedEngine")
    assert {1, 2, 4} <= {step.requests for step in done.steps} <= {1, 2, 3, 4}
    assert len(said) == 9
    assert done.fit.cost.latency(1, 0) > 0


def small() -> RunConfig:
    texts = ["model.path=m", "data.train_files=[t.jsonl]", "reward.function=a:b", "psrl.rollout_n=4"]
    return load_config(None, [*texts, "data.max_prompt_length=60", "data.max_response_length=60"])
