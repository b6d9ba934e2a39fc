"""The waterfall, against the cases of the original and its own promises."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config import RoutingStrategy
from psrl.schemas.cost_model import CostModel
from psrl.schemas.ids import InstanceId
from psrl.workers.coordinator.policies.routing.contract import Candidate, RoutingSnapshot
from psrl.workers.coordinator.policies.routing.throughput_optimal import throughput_optimal
from psrl.workers.coordinator.policies.routing.throughput_optimal_with_budget import expected

GIVEN = json.loads((Path(__file__).parents[4] / "cases" / "waterfall.json").read_text())
LARGE = CostModel(
    other_threshold=GIVEN["coefficients"]["other_threshold"],
    other_latency_b=GIVEN["coefficients"]["other_b"],
    other_latency_k=GIVEN["coefficients"]["other_k"],
    attn_latency_b=GIVEN["coefficients"]["attn_b"],
    attn_latency_k=GIVEN["coefficients"]["attn_k"],
)
SMALL = LARGE.model_copy(update={"other_latency_k": 0.001, "attn_latency_k": 1e-7})
NEED = 1000


def one(name: str, n: int = 0, t: int = 0, version: int = 0, capacity: int = 10**9, **more: Any) -> Candidate:
    cost = more.pop("cost", LARGE)
    return Candidate(InstanceId(name), version, n, 1024, kv_tokens=t, kv_capacity=capacity, cost=cost, **more)


def ask(*tiers: list[Candidate], need: int = NEED, share: float = 0.5) -> InstanceId | None:
    strategy = RoutingStrategy(delta_throughput_threshold=share)
    candidates = [each for tier in tiers for each in tier]
    chosen = throughput_optimal(RoutingSnapshot(candidates, None, 0.0, tiers, need, need, strategy=strategy))
    return chosen and chosen.instance


@pytest.mark.parametrize("case", GIVEN["cases"])
def test_the_given_cases_are_accepted_as_they_say(case: dict[str, Any]) -> None:
    assert (ask([one("a", case["n"], case["t"])]) is not None) == case["accept"]


@pytest.mark.parametrize(("n", "t"), [(30, 60_000), (100, 200_000)])
def test_an_instance_that_gains_less_than_half_of_an_idle_one_is_left_alone(n: int, t: int) -> None:
    """The original's worked numbers: 0.487 and 0.135 of what an idle instance gains."""
    assert ask([one("a", n, t)]) is None
    assert ask([one("a", n, t)], share=0.1) == "a"


def test_the_largest_gain_is_chosen_and_of_equal_ones_the_first() -> None:
    assert ask([one("a", 10, 20_000), one("b"), one("c")]) == "b"


def test_a_tier_overflows_into_the_next_only_when_no_instance_of_it_gains_enough() -> None:
    old, new = one("old", 10, 20_000, version=3), one("new", version=4)
    assert ask([old], [new]) == "old"
    assert ask([one("old", 30, 60_000, version=3)], [new]) == "new"
    assert ask([old, new]) == "new"


def test_an_instance_whose_cache_is_too_full_or_in_which_others_wait_is_passed_over() -> None:
    assert ask([one("a", 5, 9_500, capacity=10_000), one("b", 10, 20_000)]) == "b"
    assert ask([one("a", 5, 9_000, capacity=10_000), one("b", 10, 20_000)]) == "a"
    assert ask([one("a", 5, 9_000, waiting=1), one("b", 10, 20_000)]) == "b"


def test_an_idle_instance_takes_a_request_that_is_expected_to_outgrow_it() -> None:
    """It would wait for ever otherwise."""
    assert ask([one("a", capacity=500)]) == "a"


def test_an_instance_without_a_cost_model_is_passed_over() -> None:
    assert ask([one("a", cost=None), one("b")]) == "b"


def test_a_slow_instance_is_asked_for_a_share_of_what_the_first_of_its_tier_gains() -> None:
    assert ask([one("a", 30, 60_000), one("slow", cost=SMALL)]) == "slow"


@pytest.mark.parametrize(
    ("prompt", "sampled", "budget", "wanted"),
    [(10, 130, 64, 202), (10, 0, 64, 74), (10, 63, 64, 74), (10, 64, 64, 138)],
)
def test_a_response_counts_as_whole_budgets(prompt: int, sampled: int, budget: int, wanted: int) -> None:
    assert expected(prompt, sampled, budget) == wanted


CANDIDATES = st.lists(
    st.builds(
        lambda n, t, cost, waiting: (n, t, cost, waiting),
        st.integers(0, 64),
        st.integers(0, 200_000),
        st.sampled_from([LARGE, SMALL]),
        st.sampled_from([0, 0, 0, 2]),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda rows: [one(f"i{i}", n, t, cost=cost, waiting=w, capacity=100_000) for i, (n, t, cost, w) in enumerate(rows)]
)


@given(CANDIDATES, st.integers(1, 20_000), st.floats(0, 1))
def test_what_is_chosen_has_room_gains_enough_and_as_much_as_any(
    candidates: list[Candidate], need: int, share: float
) -> None:
    name = ask(candidates, need=need, share=share)
    able = [c for c in candidates if not c.waiting and (not c.load or c.kv_tokens + need <= c.kv_capacity)]
    gains = {c.instance: c.cost.gain(c.load, c.kv_tokens, need) for c in able if c.cost}
    assert candidates[0].cost is not None
    least = share * candidates[0].cost.throughput(1, need)
    if name is None:
        assert all(gain < least for gain in gains.values())
    else:
        assert gains[name] == max(gains.values()) >= least


@given(st.integers(1, 8), st.integers(1, 100_000), st.floats(0, 1))
def test_an_idle_fleet_takes_any_request(count: int, need: int, share: float) -> None:
    assert ask([one(f"i{i}") for i in range(count)], need=need, share=share) == "i0"
