"""Whatever is configured: the bound holds, nothing is lost, and a run ends."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from psrl.schemas.config import RoutingMethod
from psrl.schemas.config.routing import CandidateOrder, RequestOrder
from psrl.workers.simulate.run import simulate
from tests.support.scenarios import coordination, scenario

EXAMPLES = Path(__file__).parents[2] / "examples" / "simulator"
LENGTHS = st.sampled_from(
    [
        {"kind": "uniform", "shortest": 1, "longest": 300},
        {"kind": "bimodal", "short": 20, "long": 400, "long_share": 0.2},
        {"kind": "lognormal", "median": 60, "sigma": 1.5, "longest": 2000},
        {"kind": "power_law", "shortest": 10, "exponent": 1.2, "longest": 2000},
        {"kind": "recorded", "groups": [[5, 80], [300], [40, 41, 42]]},
    ]
)
ROUTING = st.fixed_dictionaries(
    {
        "method": st.sampled_from([method.value for method in RoutingMethod if not method.by_prefix]),
        "cost_model_path": st.just(str(EXAMPLES / "cost_model.json")),
        "request_sort_indicator": st.sampled_from([order.value for order in RequestOrder]),
        "candidate_sort_indicator": st.sampled_from([order.value for order in CandidateOrder]),
        "enable_multi_priority_queue": st.booleans(),
        "enable_group_sticky": st.booleans(),
        "admission_reject_on_waiting": st.booleans(),
    }
)
PARTIAL = st.sampled_from([{"enable": False}, {"interrupt": "reroute"}, {"interrupt": "in_place"}])
SYNC = st.sampled_from(
    [
        {},
        {"sync": {"seamless_train_version": 3}},
        {"method": "status_based", "sync": {"threshold": 2, "max_wait_s": 30}},
        {"method": "status_based", "sync": {"indicator": "hypothesis_test", "max_wait_s": 30}},
    ]
)


@st.composite
def settings(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    partial, strategy, routing = draw(PARTIAL), draw(SYNC), draw(ROUTING)
    if partial.get("enable", True) and not routing["enable_group_sticky"] and draw(st.booleans()):
        strategy = strategy | {"mig": {"enable": True, "threshold": 1.5}}
    groups, members, instances = draw(st.integers(1, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    redundant = {
        "enable": draw(st.booleans()),
        "redundant_global_batch_size": groups + draw(st.integers(0, 3)),
        "redundant_rollout_n": members + draw(st.integers(0, 2)),
    }
    filtered = draw(st.sampled_from([0.0, 0.4]))
    psrl = {
        "staleness": draw(st.integers(0, 3)),
        "staleness_buffer_entries": groups,
        "rollout_n": members,
        "deployment": {"n_rollout_instances": instances},
        "group_post_process": {"enable": filtered > 0, "name": "no_filter"},
        **coordination(
            draw(st.integers(1, 12)),
            routing=routing,
            partial_rollout=partial,
            sync_and_mig_strategy=strategy,
            redundant_rollout=redundant,
        ),
    }
    costs = {
        "lengths": draw(LENGTHS),
        "filtered_share": filtered,
        "kv_capacity_tokens": draw(st.sampled_from([0, 5000])),
        "speeds": draw(st.lists(st.sampled_from([0.3, 1.0]), min_size=instances, max_size=instances)),
        "sync_s": draw(st.sampled_from([0.0, 0.7])),
        "train_s": draw(st.sampled_from([0.0, 2.0])),
        "score_s": draw(st.sampled_from([0.0, 0.3])),
        "steps": 8,
        "seed": draw(st.integers(0, 1000)),
    }
    return psrl, costs


@given(settings())
def test_every_simulated_run_keeps_the_bound_and_loses_nothing(given_: tuple[dict[str, Any], dict[str, Any]]) -> None:
    psrl, costs = given_
    result = simulate("test", scenario(psrl, **costs)).result
    assert result.groups_trained == 8 * psrl["staleness_buffer_entries"]
    assert set(result.staleness) <= set(range(psrl["staleness"] + 1))
    left = result.groups_trained + result.groups_dropped + result.groups_filtered
    assert result.groups_drawn == left + result.groups_in_flight
    assert 0 <= result.trainer_idle_share <= 1
    assert 0 <= result.engine_busy_share <= 1 + 1e-9
