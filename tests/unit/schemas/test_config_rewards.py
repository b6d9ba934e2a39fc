"""`reward.*`: one function, several, and those that are built in."""

from typing import Any

import pytest

from psrl.schemas.config import RewardSection, RunConfig, parse_config
from psrl.schemas.errors import ConfigError
from psrl.schemas.messages.run import RolloutSettings

JUDGE = {"base_url": "http://localhost:1/v1", "model": "m"}
OVERLONG = {"max_response_length": 5120, "buffer_length": 3072}


def config(reward: dict[str, Any], **sections: Any) -> RunConfig:
    least = {"model": {"path": "m"}, "data": {"train_files": ["t"]}, "psrl": {"rollout_n": 4}}
    return parse_config({**least, "reward": reward, **sections})


def refusal(reward: dict[str, Any], **sections: Any) -> str:
    with pytest.raises(ConfigError) as found:
        config(reward, **sections)
    return str(found.value)


def built_in(function: str, **kwargs: Any) -> dict[str, Any]:
    return {"function": function, "kwargs": kwargs}


def test_each_of_several_has_the_limits_of_all_but_for_its_own() -> None:
    functions = {
        "a": {"function": "m:a", "timeout_s": 5, "kwargs": {"x": 1}},
        "b": {"function": "m:b", "weight": -0.5, "max_attempts": 1, "max_concurrency": 2, "scope": "group"},
    }
    a, b = config({"functions": functions, "timeout_s": 9, "isolation": "thread"}).reward.parts
    assert (a.name, a.key, a.weight, b.weight) == ("a", "reward.functions.a", 1.0, -0.5)
    assert (a.limits.function, a.limits.kwargs, a.limits.functions) == ("m:a", {"x": 1}, {})
    assert (a.limits.timeout_s, a.limits.max_attempts, a.limits.max_concurrency) == (5, 3, 64)
    assert (b.limits.timeout_s, b.limits.max_attempts, b.limits.max_concurrency) == (9, 1, 2)
    assert a.limits.isolation == b.limits.isolation == "thread"


def test_a_single_function_is_its_own_only_part() -> None:
    reward = config({"function": "m:a"}).reward
    (part,) = reward.parts
    assert (part.name, part.key, part.weight, part.limits) == ("", "reward", 1.0, reward)


def test_scoring_has_time_for_the_slowest_of_several_which_run_side_by_side() -> None:
    slow = {"function": "m:a", "timeout_s": 100, "max_attempts": 2, "max_concurrency": 2}
    functions = {"slow": slow, "quick": {"function": "m:b", "timeout_s": 1}}
    several = config({"functions": functions, "isolation": "thread"})
    assert several.scoring_timeout_s == 2 * 100 * 2 + 30


@pytest.mark.parametrize(("scope", "together"), [("group", True), ("trajectory", False)])
def test_one_that_wants_the_whole_group_makes_all_wait_for_it(scope: str, together: bool) -> None:
    functions = {"a": {"function": "m:a", "scope": scope}, "b": {"function": "m:b"}}
    assert config({"functions": functions}).reward.waits_for_group is together
    if together:
        assert "reward.coalesce=False has no effect" in refusal({"functions": functions, "coalesce": False})
    else:
        assert not RolloutSettings.of(config({"functions": functions, "coalesce": False})).coalesce_rewards


A = {"a": {"function": "m:a"}}


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ({}, "reward.function is required and empty"),
        (
            {"function": "m:f", "functions": A},
            "reward.function='m:f' beside reward.functions; allowed: one of both, or reward.functions.NAME.function",
        ),
        ({"functions": A, "kwargs": {"x": 1}}, "reward.kwargs={'x': 1} beside reward.functions; allowed"),
        (
            {"functions": A, "scope": "group"},
            "beside reward.functions; allowed: one of both, or reward.functions.NAME.s",
        ),
        ({"functions": {"score": A["a"]}}, "reward.functions.score: it is stored under that name; allowed: letters"),
        ({"functions": {"a/b": A["a"]}}, "reward.functions.a/b: it is stored under that name"),
        ({"functions": {"a": {"weight": 2}}}, "reward.functions.a.function is required"),
        ({"functions": {"a": {"function": "m:a", "weight": float("nan")}}}, "reward.functions.a.weight=nan: input"),
        ({"functions": {"a": {"function": "m:a", "wieght": 1}}}, "unknown key 'wieght' (did you mean 'weight'?)"),
        ({"functions": {"a": {"function": "m:a", "timeout_s": 0}}}, "reward.functions.a.timeout_s=0"),
        (
            {"function": "code_test"},
            "reward.function='code_test' is no reward (did you mean 'code_tests'?); allowed: package.module:function, "
            "path/to/file.py:function, or code_tests, llm_judge, overlong, outcome",
        ),
        ({"functions": {"a": {"function": "a.b"}}}, "reward.functions.a.function='a.b' is no reward; allowed"),
        (
            {"function": "overlong", "kwargs": OVERLONG, "scope": "group"},
            "reward.scope=group, but overlong takes one sample",
        ),
        (built_in("overlong"), "reward.kwargs.max_response_length is required"),
        (built_in("overlong", **OVERLONG, x=1), "reward.kwargs: unknown key 'x'; known here: buffer_length, factor"),
        (built_in("overlong", **{**OVERLONG, "buffer_length": 0}), "reward.kwargs.buffer_length=0: input should be"),
        (built_in("overlong", **{**OVERLONG, "buffer_length": 9999}), "buffer_length=9999 is longer than max_response"),
        (built_in("overlong", **OVERLONG, factor=0), "reward.kwargs.factor=0: input should be greater than 0"),
        (
            {"functions": {"long": built_in("overlong", **OVERLONG, factor="x")}},
            "reward.functions.long.kwargs.factor='x': input should be a valid number",
        ),
        (built_in("outcome", x=1), "reward.kwargs: unknown key 'x'"),
        (built_in("code_tests"), "reward.kwargs.form is required"),
        (
            built_in("code_tests", form="java"),
            "reward.kwargs.form='java': input should be 'asserts', 'stdin' or 'pytest'",
        ),
        (built_in("code_tests", form="stdin", limits={"cpu": 1}), "reward.kwargs.limits: unknown key 'cpu'"),
        (
            built_in("code_tests", form="stdin", limits={"wall_s": 40}),
            "reward.kwargs.limits.wall_s=40 is more than half of reward.timeout_s=60",
        ),
        (built_in("code_tests", form="stdin", test_s=0), "reward.kwargs.test_s=0: input should be greater than 0"),
        (built_in("llm_judge", model="m"), "reward.kwargs.base_url is required"),
        (built_in("llm_judge", **{**JUDGE, "model": ""}), "reward.kwargs.model='': string should have at least 1"),
        (built_in("llm_judge", **{**JUDGE, "base_url": "h:1/v1"}), "reward.kwargs.base_url: 'h:1/v1' is no such URL"),
        (
            built_in("llm_judge", **{**JUDGE, "base_url": "http://u:key@h/v1"}),
            "reward.kwargs.base_url: allowed: a URL without a key in it",
        ),
        (built_in("llm_judge", **JUDGE, api_key_env="sk-123"), "reward.kwargs.api_key_env: that is no name; allowed"),
        (built_in("llm_judge", **JUDGE, verdict="("), "reward.kwargs.verdict: '(' is no regular expression: missing )"),
        (built_in("llm_judge", **JUDGE, verdict="(a)"), "reward.kwargs.verdict: '(a)' has no such group; allowed"),
        (built_in("llm_judge", **JUDGE, temperature=-1), "reward.kwargs.temperature=-1: input should be greater"),
        (built_in("llm_judge", **JUDGE, max_tokens=0), "reward.kwargs.max_tokens=0: input should be greater"),
        (built_in("llm_judge", **JUDGE, max_retries=-1), "reward.kwargs.max_retries=-1: input should be greater"),
        (built_in("llm_judge", **JUDGE, api_key="x"), "unknown key 'api_key' (did you mean 'api_key_env'?)"),
        (
            {"functions": {"j": {**built_in("llm_judge", **JUDGE, request_s=4), "timeout_s": 6}}},
            "reward.functions.j.kwargs.request_s=4 is more than half of reward.functions.j.timeout_s=6",
        ),
    ],
)
def test_a_fault_names_the_key_the_value_and_what_was_allowed(reward: dict[str, Any], said: str) -> None:
    assert said in refusal(reward)


def test_a_key_that_was_written_in_place_of_its_variable_is_not_repeated() -> None:
    assert "sk-123" not in refusal(built_in("llm_judge", **JUDGE, api_key_env="sk-123"))
    assert "pass" not in refusal(built_in("llm_judge", model="m", base_url="http://u:pass@h/v1"))


def test_a_filter_compares_a_number_that_one_of_several_returns() -> None:
    chosen = {"rollout_n": 4, "group_post_process": {"enable": True, "name": "dynamic_sampling_filter"}}

    def with_metric(metric: str) -> dict[str, Any]:
        return {"psrl": chosen, "algorithm": {"filter_groups": {"metric": metric}}}

    for metric in ("score", "seq_reward", "a", "a/acc"):
        config({"functions": A}, **with_metric(metric))
    assert refusal({"functions": A}, **with_metric("acc")) == (
        "algorithm.filter_groups.metric='acc' with reward.functions; allowed: score, seq_reward, seq_final_reward, a, "
        "or a number of one of these, such as a/acc"
    )
    config({"function": "m:a"}, **with_metric("acc"))


def test_an_outcome_wants_somebody_who_says_it() -> None:
    functions = {"own": {"function": "outcome"}}
    assert refusal({"functions": functions}) == (
        "reward.functions.own.function=outcome, which an environment or an agent says, but "
        "psrl.agentic_rl.agent_loop=generate_only has none; allowed: multi_turn, session"
    )


def test_a_function_of_several_has_no_more_processes_than_it_may_have_calls() -> None:
    one, other = {"function": "mine:one", "max_concurrency": 2}, {"function": "mine:other"}
    reward = RewardSection.model_validate({"functions": {"one": one, "other": other}, "isolation": "process"})
    assert [part.limits.room for part in reward.parts] == [2, 4]
