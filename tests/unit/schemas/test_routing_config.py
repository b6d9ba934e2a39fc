"""`psrl.rollout_coordination.routing_strategy.*`: what is refused, and how it travels."""

import pytest

from psrl.schemas.config import RequestOrder, RoutingMethod, RoutingStrategy, load_config
from psrl.schemas.errors import ConfigError
from psrl.schemas.ids import GroupId, RunId
from psrl.schemas.messages.rollout import RouteRequest
from psrl.schemas.messages.run import RolloutSettings

MINIMAL = ("model.path=m", "data.train_files=[t.jsonl]", "reward.function=a:b", "psrl.rollout_n=4")
HERE = "psrl.rollout_coordination.routing_strategy"


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        (
            f"{HERE}.method=throughput_optimal",
            "cost_model_path=null with .*method=throughput_optimal; allowed: the path",
        ),
        (f"{HERE}.method=throughput_balance", "input should be 'request_num_balance', 'round_robin', 'random'"),
        (f"{HERE}.kv_transfer={{enable: false}}", "KV cache is not moved between engines"),
        (f"{HERE}.enable_trajectory_sticky=true", "a turn always begins where the one before it was"),
        (f"{HERE}.check_interval_in_ms=500", "nothing is polled for"),
        (f"{HERE}.max_num_waiting_reqs_after_preemption=1024", "vLLM does not tell of a preemption"),
        (f"{HERE}.cache_aware_policy.lmcache_overlap_weight=1", "no second tier of KV cache"),
        ("psrl.status_collection.enable=true", "instances always report"),
        (f"{HERE}.delta_throughput_threshold=1.5", "less than or equal to 1"),
        (f"{HERE}.enable_group_stick=true", "did you mean 'enable_group_sticky'"),
    ],
)
def test_a_key_or_value_that_has_no_place_is_refused_with_the_reason(override: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        load_config(None, [*MINIMAL, override])


def test_the_names_and_defaults_are_those_of_the_original() -> None:
    routing = load_config(None, list(MINIMAL)).psrl.rollout_coordination.routing_strategy
    assert routing.model_dump(mode="json") == {
        "method": "request_num_balance",
        "max_concurrent_seqs_per_instance": 1024,
        "admission_reject_on_waiting": True,
        "request_sort_indicator": "small_id",
        "enable_multi_priority_queue": False,
        "candidate_sort_indicator": "version",
        "enable_group_sticky": False,
        "cost_model_path": None,
        "delta_throughput_threshold": 0.5,
        "request_budget": 1024,
        "cache_aware_policy": {
            "cache_threshold": 0.0,
            "balance_abs_threshold": 16,
            "balance_rel_threshold": 1.5,
            "balance_token_usage_threshold": 0.75,
            "overload_token_usage_threshold": 1.0,
            "max_tree_size": 67108864,
            "block_size": 16,
            "kv_capacity_threshold": 2.0,
        },
    }


def test_a_strategy_travels_as_what_differs_from_the_defaults() -> None:
    overrides = [f"{HERE}.method=cache_aware", f"{HERE}.request_sort_indicator=long_length"]
    settings = RolloutSettings.of(load_config(None, [*MINIMAL, *overrides]))
    text = settings.model_dump(mode="json")["strategy"]
    assert text == '{"method":"cache_aware","request_sort_indicator":"long_length"}'
    request = RouteRequest(
        run_id=RunId("r"), group_id=GroupId("0"), indices=(0,), version_tag=0, strategy=settings.strategy
    )
    back = RouteRequest.model_validate_json(request.model_dump_json())
    assert back == request
    assert back.strategy == RoutingStrategy(
        method=RoutingMethod.CACHE_AWARE, request_sort_indicator=RequestOrder.LONG_LENGTH
    )
