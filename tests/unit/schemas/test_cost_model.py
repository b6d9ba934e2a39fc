"""The cost model: its formula, and files that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.cost_model import CostModel, layout, read_cost_model
from psrl.schemas.errors import ConfigError

GIVEN = json.loads((Path(__file__).parents[2] / "cases" / "waterfall.json").read_text())
ENTRY = {
    "other_threshold": GIVEN["coefficients"]["other_threshold"],
    "other_latency_b": GIVEN["coefficients"]["other_b"],
    "other_latency_k": GIVEN["coefficients"]["other_k"],
    "attn_latency_b": GIVEN["coefficients"]["attn_b"],
    "attn_latency_k": GIVEN["coefficients"]["attn_k"],
}
COST = CostModel.model_validate(ENTRY)


@pytest.mark.parametrize("case", GIVEN["cases"])
def test_the_gain_of_the_given_cases(case: dict[str, Any]) -> None:
    assert COST.gain(case["n"], case["t"], 1000) == pytest.approx(case["gain"], abs=GIVEN["tolerance_abs"])


def test_an_idle_engine_gives_nothing_and_the_first_request_all_of_its_throughput() -> None:
    assert COST.throughput(0, 0) == 0
    assert COST.gain(0, 0, 1000) == COST.throughput(1, 1000)


@given(st.integers(0, 2000), st.integers(0, 2_000_000), st.integers(1, 100_000))
def test_more_requests_or_tokens_never_make_a_step_faster(n: int, t: int, more: int) -> None:
    assert COST.latency(n + 1, t) >= COST.latency(n, t) > 0
    assert COST.latency(n, t + more) > COST.latency(n, t)


def test_the_entry_of_the_engines_layout_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps({"TP2_PP1": ENTRY | {"fit": {"samples": 12}}, "TP1_PP1": {}}))
    assert read_cost_model(str(path), layout(2)) == COST


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            None,
            r"cost_model_path=\S+ cannot be read \(No such file or directory\); `psrl calibrate` writes such a file",
        ),
        ("{", "it is no JSON"),
        ("[]", "holds no JSON object; allowed: an entry per layout, such as 'TP1_PP1'"),
        (json.dumps({"TP8_PP2": ENTRY}), "has no entry 'TP1_PP1' for this engine; it has: TP8_PP2"),
        (json.dumps({"TP1_PP1": ENTRY | {"attn_latency_k": -1}}), "TP1_PP1.attn_latency_k=-1"),
        (json.dumps({"TP1_PP1": dict.fromkeys(ENTRY, 0)}), "a step of one request would take 0 s"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, text: str | None, wanted: str) -> None:
    path = tmp_path / "cost.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=wanted):
        read_cost_model(str(path), layout())


def test_an_engine_twice_as_fast_takes_half_the_time_for_any_batch() -> None:
    fast = COST.at_speed(2.0)
    for n, t in [(1, 0), (10, 20_000), (100, 200_000)]:
        assert fast.latency(n, t) == pytest.approx(COST.latency(n, t) / 2)
