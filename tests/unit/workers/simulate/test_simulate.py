"""A simulated run, against what can be worked out by hand."""

from pathlib import Path

import pytest

from psrl.schemas.errors import ConfigError
from psrl.workers.simulate.run import simulate
from psrl.workers.simulate.scenario import Scenario
from tests.support.scenarios import coordination, scenario

KNOWN = {"cost_model_path": str(Path(__file__).parents[4] / "examples" / "simulator" / "cost_model.json")}
"""Routing with a cost model."""

LONG_TAIL = {"kind": "lognormal", "median": 100, "sigma": 1.0, "longest": 3000}
MIGRATION = {"mig": {"enable": True, "threshold": 2}}
BY_CACHE = {"mig": {"enable": True, "threshold": 2, "indicator": "kv_cache"}}


def seconds(of: Scenario) -> float:
    return simulate("test", of).result.seconds


# --- constant lengths, one instance ----------------------------------------------------------------------------------


def test_a_synchronous_step_is_generation_plus_training() -> None:
    result = simulate("test", scenario(coordination(slots=64))).result
    assert result.seconds == pytest.approx(20 * (1.0 + 0.25))
    assert result.trainer_idle_share == pytest.approx(1.0 / 1.25)
    assert result.engine_busy_share == pytest.approx(4 / 64 * 1.0 / 1.25)
    assert (result.staleness, result.mean_length, result.groups_trained) == ({0: 80}, 100, 80)
    assert result.tokens_per_s == pytest.approx(400 / 1.25)


def test_with_one_version_of_slack_generation_and_training_overlap() -> None:
    """Four slots are always taken, so a batch is complete every second."""
    assert seconds(scenario({"staleness": 1, **coordination(slots=4)})) == pytest.approx(20 * 1.0 + 0.25)


def test_a_trainer_that_is_slower_than_generation_never_waits_but_for_the_first_batch() -> None:
    result = simulate("test", scenario({"staleness": 1}, train_s=3.0)).result
    assert result.seconds == pytest.approx(1.0 + 20 * 3.0)


def test_training_may_take_its_time_for_each_token() -> None:
    assert seconds(scenario(train_s=0.0, train_s_per_token=0.001)) == pytest.approx(20 * (1.0 + 0.4))


def test_a_sync_and_a_reward_take_their_time() -> None:
    """The first version is there already."""
    assert seconds(scenario(sync_s=0.5, score_s=0.1)) == pytest.approx(20 * (1.0 + 0.1 + 0.25) + 19 * 0.5)


def test_a_slow_instance_holds_a_synchronous_step_up() -> None:
    two = {"deployment": {"n_rollout_instances": 2}}
    assert seconds(scenario(two, speeds=[1.0, 0.5])) == pytest.approx(20 * (2.0 + 0.25))


def test_an_interrupted_generation_continues_where_it_was() -> None:
    """A part of each answer is sampled before the next version comes; prefill is the only cost."""
    of = {"staleness": 3, **coordination(slots=8)}
    engine = scenario().simulate.engine.model_copy(update={"prefill_s_per_token": 0.0001}).model_dump()
    again = simulate("reroute", scenario(of, engine=engine, prompt_tokens=100)).result
    kept = simulate(
        "in place",
        scenario(
            {"staleness": 3, **coordination(slots=8, partial_rollout={"interrupt": "in_place"})},
            engine=engine,
            prompt_tokens=100,
        ),
    ).result
    assert again.prefilled_again > 0
    assert kept.prefilled_again == 0
    assert kept.seconds < again.seconds
    assert again.mean_length == kept.mean_length == 100


def test_without_partial_rollout_an_instance_syncs_once_it_is_idle() -> None:
    drained = coordination(slots=8, partial_rollout={"enable": False})
    result = simulate("test", scenario({"staleness": 1, **drained}, lengths=LONG_TAIL)).result
    assert result.prefilled_again == 0
    assert result.seconds > seconds(scenario({"staleness": 1, **coordination(slots=8)}, lengths=LONG_TAIL))


def test_trajectories_of_a_group_that_is_larger_than_the_fleet_take_turns() -> None:
    assert seconds(scenario({"rollout_n": 5, **coordination(slots=1)}, steps=2)) == pytest.approx(2 * (20 * 1.0 + 0.25))


# --- what is given up ------------------------------------------------------------------------------------------------


def test_redundant_trajectories_are_given_up_and_their_tokens_counted() -> None:
    extra = {"enable": True, "redundant_rollout_n": 3}
    of = {"rollout_n": 2, **coordination(redundant_rollout=extra)}
    result = simulate("test", scenario(of, lengths=LONG_TAIL)).result
    plain = simulate("test", scenario({"rollout_n": 2}, lengths=LONG_TAIL)).result
    assert result.requests == 20 * 4 * 3
    assert result.lost_tokens > 0
    assert result.mean_length < plain.mean_length
    assert result.seconds < plain.seconds


def test_redundant_groups_are_dropped_with_their_version() -> None:
    extra = {"enable": True, "redundant_global_batch_size": 6}
    result = simulate("test", scenario(coordination(redundant_rollout=extra), lengths=LONG_TAIL)).result
    assert result.groups_dropped > 0
    assert result.groups_drawn == result.groups_trained + result.groups_dropped + result.groups_in_flight


def test_a_filtered_group_is_replaced() -> None:
    of = {"group_post_process": {"enable": True, "name": "no_filter"}}
    result = simulate("test", scenario(of, filtered_share=0.43)).result
    assert result.groups_trained == 80
    assert result.groups_filtered > 20
    assert result.lost_tokens == 100 * result.groups_filtered


def test_migration_moves_answers_to_the_fast_instance() -> None:
    of = {"staleness": 1, "deployment": {"n_rollout_instances": 2}}
    settings = {"speeds": [1.0, 0.25], "lengths": LONG_TAIL, "steps": 50}
    still = simulate("still", scenario(of | coordination(), **settings)).result
    moving = simulate("moving", scenario(of | coordination(sync_and_mig_strategy=MIGRATION), **settings)).result
    assert (still.moved, moving.groups_trained) == (0, still.groups_trained)
    assert moving.moved > 0
    assert moving.mean_length == still.mean_length


@pytest.mark.parametrize("indicator", ["request_num", "throughput", "hypothesis_test"])
def test_a_status_based_sync_waits_for_a_good_moment_and_comes_in_the_end(indicator: str) -> None:
    threshold = None if indicator == "hypothesis_test" else 2
    strategy = {"method": "status_based", "sync": {"indicator": indicator, "threshold": threshold, "max_wait_s": 60}}
    of = {
        "staleness": 2,
        "deployment": {"n_rollout_instances": 2},
        **coordination(8, routing=KNOWN, sync_and_mig_strategy=strategy),
    }
    result = simulate("test", scenario(of, lengths=LONG_TAIL, sync_s=0.2)).result
    assert result.groups_trained == 80
    assert max(result.staleness) <= 2


def test_seamless_first_versions_interrupt_nothing_before_the_next_buffer_is_complete() -> None:
    """Eight groups are live, four slots: half of them wait, and would be interrupted."""
    of = {"staleness": 1}
    seamless = {"sync": {"seamless_train_version": 5}}
    plain = simulate("plain", scenario(of | coordination(4), lengths=LONG_TAIL, steps=5)).result
    kept = simulate("kept", scenario(of | coordination(4, sync_and_mig_strategy=seamless), lengths=LONG_TAIL, steps=5))
    assert plain.prefilled_again > kept.result.prefilled_again
    assert kept.result.groups_trained == 20


# --- the same answers to the same questions --------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    of = {"staleness": 2, **coordination(8, routing={"method": "random"})}
    first = simulate("test", scenario(of, lengths=LONG_TAIL))
    assert simulate("test", scenario(of, lengths=LONG_TAIL)).result == first.result
    assert simulate("test", scenario(of, lengths=LONG_TAIL)).timeline == first.timeline
    assert simulate("test", scenario(of, lengths=LONG_TAIL, seed=1)).result != first.result


def test_every_configuration_answers_the_same_prompts_with_the_same_lengths() -> None:
    results = [simulate("test", scenario({"staleness": eta}, lengths=LONG_TAIL)).result for eta in (0, 3)]
    assert results[0].mean_length == results[1].mean_length


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("psrl", "simulate_", "told"),
    [
        ({"agentic_rl": {"agent_loop": "multi_turn"}}, {}, "psrl.agentic_rl.agent_loop=multi_turn is not simulated"),
        ({"group_post_process": {"enable": True, "name": "no_filter"}}, {}, "simulate.filtered_share=0.0"),
        ({}, {"filtered_share": 0.2}, "psrl.group_post_process.enable=false"),
        ({}, {"speeds": [1.0, 2.0]}, "simulate.speeds has 2 numbers"),
        ({}, {"speeds": [0.0]}, r"speeds=\[0.0\]; allowed: numbers from 0.001 to 1000"),
        ({}, {"kv_capacity_tokens": 600}, "allowed: more than 612"),
        ({}, {"stps": 3}, "unknown key 'stps'.*steps"),
        ({}, {"lengths": {"kind": "gamma"}}, "simulate.lengths.*gamma.*lognormal"),
        ({}, {"lengths": {"kind": "uniform", "shortest": 9, "longest": 3}}, "longest=3 is below 9"),
        ({}, {"lengths": {"kind": "recorded", "groups": [[3], []]}}, r"groups.1=\[\]"),
        (
            {},
            {"engine": {"other_threshold": 0, "other_latency_b": 0, "attn_latency_b": 0, "other_latency_k": 0}},
            "0 s",
        ),
        (coordination(routing={"method": "cache_aware"}), {}, "method=cache_aware is not simulated"),
        (coordination(session_strategy={"thunder_agent": {"enable": True}}), {}, "thunder_agent.enable=true"),
        (coordination(sync_and_mig_strategy=BY_CACHE), {}, "simulate.kv_capacity_tokens=0"),
    ],
)
def test_what_cannot_be_simulated_is_refused_by_name(
    psrl: dict[str, object], simulate_: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        scenario(psrl, **simulate_)
