"""What a group filter lets pass, and that none passes by a filter's failure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psrl.activities.filters.registry import BUILT_IN, check_filter, needed_metric
from psrl.activities.filters.verdict import Verdicts
from psrl.schemas.config import GroupFilterName, RunConfig, parse_config
from psrl.schemas.errors import FilterLoadError
from psrl.schemas.ids import GroupId
from psrl.schemas.messages.rewards import GroupVerdict, ScoredGroup, ScoredTrajectory, Verdict

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def config(name: str, metric: str = "score", **reward: Any) -> RunConfig:
    return parse_config(
        {
            "model": {"path": "model"},
            "data": {"train_files": ["train.jsonl"]},
            "reward": {"function": "a:b", "max_attempts": 1, **reward},
            "psrl": {"rollout_n": 4, "group_post_process": {"enable": True, "name": name}},
            "algorithm": {"filter_groups": {"metric": metric}},
        }
    )


def group(*rewards: float, tokens: int = 3, **metrics: list[float]) -> ScoredGroup:
    return ScoredGroup(
        group_id=GroupId("000004"),
        trajectories=tuple(
            ScoredTrajectory(
                index=index,
                reward=reward,
                tokens=tokens,
                metrics={name: values[index] for name, values in metrics.items() if index < len(values)},
            )
            for index, reward in enumerate(rewards)
        ),
    )


async def verdict(chosen: RunConfig, judged: ScoredGroup) -> GroupVerdict:
    return await Verdicts().of("run", chosen, judged)


SHAPED = group(-0.1, -0.25, -0.4, -0.2, acc=[0.0] * 4)
"""All failures, with a length term on top."""


async def test_failures_that_only_a_length_term_tells_apart_pass_by_the_reward_and_not_by_what_counts() -> None:
    """Field report 133."""
    assert (await verdict(config("dynamic_sampling_filter"), SHAPED)).verdict is Verdict.KEEP
    by_accuracy = await verdict(config("dynamic_sampling_filter", "acc"), SHAPED)
    assert by_accuracy == GroupVerdict(verdict=Verdict.DROP, reason="all 4 values of acc are 0")


async def test_a_group_with_one_success_passes_whatever_its_rewards_are() -> None:
    mixed = group(0.5, 0.5, 0.5, 0.5, acc=[0, 1, 0, 0])
    assert (await verdict(config("dynamic_sampling_filter", "acc"), mixed)).verdict is Verdict.KEEP
    assert (await verdict(config("dynamic_sampling_filter"), mixed)).reason == "all 4 rewards are 0.5"


@pytest.mark.parametrize("name", ["seq_reward", "seq_final_reward"])
async def test_the_reward_has_the_names_that_people_know_it_by(name: str) -> None:
    equal = group(1.0, 1.0, seq_reward=[0.0, 1.0], seq_final_reward=[0.0, 1.0])
    assert (await verdict(config("dynamic_sampling_filter", name), equal)).reason == "all 2 rewards are 1"


@given(st.lists(FINITE, min_size=2, max_size=9), st.data())
async def test_dynamic_sampling_keeps_exactly_what_differs(rewards: list[float], data: st.DataObject) -> None:
    metric = data.draw(st.lists(FINITE, min_size=len(rewards), max_size=len(rewards)))
    judged = group(*rewards, acc=metric)
    for name, values in (("score", rewards), ("acc", metric)):
        found = await verdict(config("dynamic_sampling_filter", name), judged)
        assert (found.verdict is Verdict.KEEP) == (len(set(values)) > 1)
        assert bool(found.reason) == (found.verdict is Verdict.DROP)


@given(st.lists(FINITE, min_size=1, max_size=9))
async def test_no_filter_keeps_everything(rewards: list[float]) -> None:
    assert await verdict(config("no_filter"), group(*rewards)) == GroupVerdict(verdict=Verdict.KEEP)


def test_every_name_of_the_configuration_has_its_filter() -> None:
    assert set(BUILT_IN) == set(GroupFilterName)


async def test_a_metric_that_one_reward_did_not_return_fails_the_group_naming_it() -> None:
    partial = group(0.0, 1.0, acc=[0.0], style=[1.0, 1.0])
    found = await verdict(config("dynamic_sampling_filter", "acc"), partial)
    assert found.verdict is Verdict.FAILED
    assert "the reward of t01 has no number 'acc', only score, style" in found.reason


@pytest.mark.parametrize("name", ["all_long", "all_long_async"])
async def test_a_filter_of_the_user_keeps_by_none_and_drops_by_its_reason(name: str) -> None:
    chosen = config(f"tests.support.filters:{name}")
    assert (await verdict(chosen, group(1, 1, tokens=2))).verdict is Verdict.KEEP
    dropped = GroupVerdict(verdict=Verdict.DROP, reason="the shortest answer has 3 tokens")
    assert await verdict(chosen, group(0, 1)) == dropped


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "failed: LookupError: nothing known of 000004"),
        ("says_true", "failed: returned True; allowed: None to train on the group, or why it is left out"),
        ("by_style", "failed: the reward of t00 has no number 'style', only score"),
        ("gone", "tests.support.filters has no 'gone'"),
    ],
)
async def test_a_filter_of_the_user_that_fails_fails_the_group_and_lets_none_pass(name: str, reason: str) -> None:
    found = await verdict(config(f"tests.support.filters:{name}"), group(0, 1))
    assert found.verdict is Verdict.FAILED
    assert reason in found.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.support.filters:gone", "has no 'gone'"),
        ("tests.support.nothing:f", "No module named 'tests.support.nothing'"),
        ("tests.support.filters:of_two", r"takes \(rewards: .*\) -> None; allowed: a function of one argument"),
        ("tests.support.filters:", r"allowed: package\.module:function"),
    ],
)
def test_a_filter_that_cannot_be_called_is_refused_before_the_run_begins(name: str, reason: str) -> None:
    with pytest.raises(FilterLoadError, match=rf"(?s)psrl\.group_post_process\.name=.*{reason}"):
        check_filter(config(name))


def test_a_reward_must_return_what_the_filter_compares() -> None:
    assert needed_metric(config("dynamic_sampling_filter", "acc")) == "acc"
    assert needed_metric(config("dynamic_sampling_filter")) is None
    assert needed_metric(config("no_filter")) is None
