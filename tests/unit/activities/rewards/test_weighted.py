"""Several weighted rewards: what becomes of their scores, and of their failures."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from psrl.activities.rewards.weighted import RewardCalls
from psrl.schemas.config import RewardSection
from psrl.schemas.errors import RewardLoadError
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from tests.support import rewards
from tests.support.rewards import answered

HERE = "tests.support.rewards"
Opened = Callable[..., RewardCalls]


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    every: list[RewardCalls] = []

    def open_calls(values: dict[str, Any], **limits: Any) -> RewardCalls:
        functions = {
            name: {"function": part} if isinstance(part, str) else {"function": name, **part}
            for name, part in values.items()
        }
        limits = {"max_attempts": 1, "isolation": "thread", **limits}
        every.append(RewardCalls(RewardSection.model_validate({"functions": functions, **limits})))
        return every[-1]

    rewards.calls.clear()
    rewards.released.clear()
    yield open_calls
    rewards.released.set()
    for one in every:
        one.close()


async def score(calls: RewardCalls, *texts: str, needed: str | None = None) -> list[Score]:
    samples = [answered(text, response_ids=[1] * len(text)) for text in texts]
    return await calls.score(range(len(texts)), samples, needed)


async def test_the_reward_is_the_weighted_sum_and_every_score_is_stored_under_its_name(opened: Opened) -> None:
    calls = opened(
        {
            "length": {"function": f"{HERE}:length_async", "weight": 0.5},
            "shaped": {"function": f"{HERE}:shaped", "weight": 10},
            "seen": {"function": f"{HERE}:length", "weight": 0},
        }
    )
    first, second = await score(calls, "10", "2")
    assert first.reward == pytest.approx(0.5 * 2 + 10 * 0.8)
    assert first.metrics == pytest.approx({"length": 2.0, "shaped": 0.8, "shaped/acc": 1.0, "seen": 2.0})
    assert second.metrics == pytest.approx({"length": 1.0, "shaped": -0.1, "shaped/acc": 0.0, "seen": 1.0})


async def test_one_of_them_alone_is_the_same_as_the_function_itself_but_for_the_names() -> None:
    alone = RewardCalls(RewardSection(function=f"{HERE}:shaped", isolation="thread"))
    (by_itself,) = await score(alone, "10")
    several = {"a": {"function": f"{HERE}:shaped"}}
    (named,) = await score(
        RewardCalls(RewardSection.model_validate({"functions": several, "isolation": "thread"})), "10"
    )
    assert (by_itself.reward, by_itself.metrics) == (0.8, {"acc": 1.0})
    assert (named.reward, named.metrics) == (0.8, {"a": 0.8, "a/acc": 1.0})


async def test_one_that_fails_fails_the_trajectory_and_is_named(opened: Opened) -> None:
    calls = opened({"strict": f"{HERE}:refuses_x", "length": f"{HERE}:length"})
    failed, scored = await score(calls, "x", "1")
    assert (failed.outcome, failed.reward, failed.metrics) == (ScoreOutcome.FAILED, None, {})
    assert failed.error == "strict: ValueError: no x"
    assert scored.reward == 2.0


async def test_a_weight_of_zero_makes_no_failure_a_score(opened: Opened) -> None:
    calls = opened({"strict": {"function": f"{HERE}:refuses_x", "weight": 0}, "length": f"{HERE}:length"})
    assert (await score(calls, "x"))[0].error == "strict: ValueError: no x"


async def test_rewards_of_a_group_and_of_a_trajectory_mix(opened: Opened) -> None:
    calls = opened({"rank": {"function": f"{HERE}:group_rank", "scope": "group"}, "length": f"{HERE}:length"})
    found = await score(calls, "abc", "a", "ab")
    assert [one.metrics for one in found] == [
        {"rank": 2.0, "length": 3.0},
        {"rank": 0.0, "length": 1.0},
        {"rank": 1.0, "length": 2.0},
    ]


async def test_each_has_a_time_limit_of_its_own_which_is_named(opened: Opened) -> None:
    calls = opened(
        {
            "slow": {"function": f"{HERE}:hangs_on_x", "timeout_s": 0.2},
            "late": {"function": f"{HERE}:hangs_on_x_async"},
        },
        timeout_s=0.3,
    )
    failed, scored = await score(calls, "x", "y")
    assert failed.error == (
        "slow: no result within reward.functions.slow.timeout_s=0.2; "
        "late: no result within reward.functions.late.timeout_s=0.3"
    )
    assert scored.reward == 2.0


async def test_each_is_repeated_as_often_as_it_says_and_no_other_with_it(opened: Opened) -> None:
    calls = opened(
        {"third": {"function": f"{HERE}:succeeds_at_third_call", "max_attempts": 3}, "length": f"{HERE}:length"}
    )
    assert (await score(calls, "abc"))[0].metrics == {"third": 0.5, "length": 3.0}
    assert len(rewards.calls) == 3


async def test_a_number_that_the_filter_needs_is_missed_at_once(opened: Opened) -> None:
    calls = opened({"a": f"{HERE}:sometimes_without_acc", "b": f"{HERE}:length"})
    failed, scored = await score(calls, "x", "y", needed="a/acc")
    assert failed.error.startswith("a: returned no number 'acc', which algorithm.filter_groups.metric needs")
    assert scored.reward == 1.0
    assert [one.reward for one in await score(calls, "y", needed="b")] == [1.0]


async def test_a_sum_that_is_no_number_any_more_is_a_failure(opened: Opened) -> None:
    calls = opened({"a": {"function": f"{HERE}:length", "weight": 1e308}})
    (failed,) = await score(calls, "x" * 10)
    assert failed.error == "the weighted sum is inf; allowed: a finite number"


async def test_one_that_cannot_be_loaded_is_refused_by_its_key_when_the_others_have_ended(opened: Opened) -> None:
    calls = opened({"counted": f"{HERE}:counted", "lost": f"{HERE}:no_such"})
    with pytest.raises(RewardLoadError, match=r"reward\.functions\.lost\.function='tests.support.rewards:no_such'"):
        await score(calls, "a")
    assert rewards.calls == ["a"]
