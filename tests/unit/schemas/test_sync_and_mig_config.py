"""`psrl.rollout_coordination.{partial_rollout,sync_and_mig_strategy}`: defaults, and combinations that are refused."""

from typing import Any

import pytest

from psrl.activities.data.admit import check_interrupt
from psrl.schemas.config import parse_config
from psrl.schemas.config.sync_and_mig import SyncMode
from psrl.schemas.errors import ConfigError

STATUS_BASED = {"method": "status_based", "sync": {"threshold": 2}}


def coordination(**sections: Any) -> dict[str, Any]:
    return {
        "model": {"path": "m"},
        "data": {"train_files": ["t"]},
        "reward": {"function": "m:f"},
        "psrl": {"rollout_n": 2, "rollout_coordination": sections},
    }


def test_the_defaults_are_psrls() -> None:
    chosen = parse_config(coordination()).psrl.rollout_coordination
    sync, mig = chosen.sync_and_mig_strategy.sync, chosen.sync_and_mig_strategy.mig
    assert chosen.sync_and_mig_strategy.method == "greedy"
    assert (sync.indicator, sync.threshold, sync.check_req_before_sync) == ("request_num", None, True)
    assert sync.seamless_train_version == 0
    assert (mig.enable, mig.indicator, mig.threshold) == (False, "request_num", None)
    assert (mig.stop_indicator, mig.stop_threshold) == ("request_num", None)
    assert (chosen.partial_rollout.enable, chosen.partial_rollout.interrupt_as_prompt) == (True, False)


@pytest.mark.parametrize(
    ("partial", "mode"),
    [
        ({}, SyncMode.INTERRUPT),
        ({"enable": False}, SyncMode.DRAIN),
        ({"interrupt": "in_place"}, SyncMode.IN_PLACE),
    ],
)
def test_partial_rollout_says_what_becomes_of_requests(partial: dict[str, Any], mode: SyncMode) -> None:
    chosen = parse_config(coordination(partial_rollout=partial)).psrl.rollout_coordination.partial_rollout
    assert chosen.mode is mode


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"partial_rollout": {"interrupt_as_prompt": True}}, "interrupt_as_prompt=true is not supported"),
        (
            {"partial_rollout": {"enable": False, "interrupt": "in_place"}},
            "partial_rollout.interrupt=in_place has no effect",
        ),
        (
            {"sync_and_mig_strategy": {"method": "status_based"}},
            "sync.threshold=null with method=status_based and sync.indicator=request_num",
        ),
        ({"sync_and_mig_strategy": {"sync": {"threshold": 2}}}, "sync.threshold=2.0 has no effect"),
        ({"sync_and_mig_strategy": {"sync": {"indicator": "kv_cache"}}}, "sync.indicator=kv_cache has no effect"),
        ({"sync_and_mig_strategy": {"sync": {"max_wait_s": 5}}}, "sync.max_wait_s=5.0 has no effect"),
        ({"sync_and_mig_strategy": {"check_interval_in_ms": 100}}, "'check_interval_in_ms' is not taken"),
        ({"sync_and_mig_strategy": {"mig": {"enable": True}}}, "mig.threshold=null while enabled"),
        (
            {"proactive_filter_strategy": {"method": "retry"}},
            "key 'proactive_filter_strategy' is not taken: not supported",
        ),
        ({"redundant_rollout": {"alg_rollout_n": 2}}, "key 'alg_rollout_n' is not taken: psrl.rollout_n says it"),
        (
            {
                "sync_and_mig_strategy": {"mig": {"enable": True, "threshold": 2}},
                "partial_rollout": {"enable": False},
            },
            "partial_rollout.enable=false forbids",
        ),
        (
            {
                "sync_and_mig_strategy": {"mig": {"enable": True, "threshold": 2}},
                "routing_strategy": {"enable_group_sticky": True},
            },
            "where psrl.rollout_coordination.routing_strategy.enable_group_sticky=true keeps them",
        ),
        (
            {"sync_and_mig_strategy": {"mig": {"enable": True, "threshold": 0.5}}},
            "mig.threshold=0.5: input should be greater than or equal to 1",
        ),
        (
            {"sync_and_mig_strategy": {"method": "status_based", "sync": {"indicator": "kv_cache", "threshold": 80}}},
            "sync.threshold=80 with sync.indicator=kv_cache, which is a share; allowed: a number from 0 to 1",
        ),
        (
            {
                "sync_and_mig_strategy": {
                    "mig": {"enable": True, "threshold": 2, "stop_indicator": "kv_cache", "stop_threshold": 1.5}
                }
            },
            "mig.stop_threshold=1.5 with mig.stop_indicator=kv_cache, which is a share; allowed: a number from 0 to 1",
        ),
    ],
)
def test_a_combination_that_cannot_work_is_refused_with_the_reason(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(coordination(**sections))
    assert told in str(refused.value)


def test_in_place_is_for_the_simulator_alone() -> None:
    config = parse_config(coordination(partial_rollout={"interrupt": "in_place"}))
    with pytest.raises(ConfigError, match="interrupt=in_place is refused"):
        check_interrupt(config)
    check_interrupt(parse_config(coordination()))


def test_an_estimate_needs_a_cost_model() -> None:
    keys = {"method": "status_based", "sync": {"indicator": "hypothesis_test"}}
    with pytest.raises(ConfigError, match=r"cost_model_path=null with .*hypothesis_test; allowed: the path of a file"):
        parse_config(coordination(sync_and_mig_strategy=keys))
    assert parse_config(coordination(sync_and_mig_strategy=keys, routing_strategy={"cost_model_path": "c.json"}))
    assert parse_config(coordination(sync_and_mig_strategy=keys, partial_rollout={"enable": False}))


def test_settings_of_what_is_switched_off_are_kept() -> None:
    keys = {"threshold": 3, "indicator": "kv_cache", "stop_threshold": 1}
    assert parse_config(coordination(sync_and_mig_strategy={"mig": keys}))
    assert parse_config(coordination(sync_and_mig_strategy=STATUS_BASED))
