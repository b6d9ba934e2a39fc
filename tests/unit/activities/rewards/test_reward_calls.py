"""Reward functions are user code: whatever they do costs nobody but the trajectory they judge."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from psrl.activities.rewards.compute import score_group, score_one
from psrl.activities.rewards.load import load_reward
from psrl.activities.rewards.reading import number
from psrl.activities.user_code.calls import UserCalls
from psrl.schemas.config import RewardSection
from psrl.schemas.errors import RewardLoadError, UserCodeFailed
from psrl.schemas.messages.rewards import RewardSample, Score, ScoreOutcome
from tests.support import rewards


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    rewards.calls.clear()
    rewards.released.clear()
    yield
    rewards.released.set()


def sample(text: str) -> RewardSample:
    return RewardSample(
        data_source="", prompt_text="", response_text=text, ground_truth=None, extra={}, prompt_ids=[], response_ids=[]
    )


async def score(name: str, *texts: str, **limits: float) -> list[Score]:
    section = RewardSection.model_validate({"function": f"tests.support.rewards:{name}", **limits})
    calls = UserCalls("reward", load_reward(section.function), section)
    tasks = [score_one(calls, section, index, sample(text)) for index, text in enumerate(texts)]
    return list(await asyncio.gather(*tasks))


async def release(calls: UserCalls) -> None:
    """Lets hanging calls return, and waits until they have."""
    rewards.released.set()
    while calls.abandoned:  # noqa: ASYNC110  (threads that return set no asyncio event)
        await asyncio.sleep(0.01)


def outcomes(scores: list[Score]) -> list[ScoreOutcome]:
    return [item.outcome for item in scores]


@pytest.mark.parametrize("name", ["length", "length_async", "length_wrapped"])
async def test_sync_and_async_functions_score(name: str) -> None:
    assert [item.reward for item in await score(name, "a", "", "abc")] == [1.0, 0.0, 3.0]


async def test_a_failure_is_not_a_zero() -> None:
    results = await score("refuses_x", "1", "0", "x", "0", max_attempts=1)
    assert [item.reward for item in results] == [1.0, 0.0, None, 0.0]
    assert results[2].outcome is ScoreOutcome.FAILED
    assert results[2].error == "ValueError: no x"


async def test_a_raising_reward_is_called_as_often_as_configured_and_its_last_failure_kept_in_one_line() -> None:
    (result,) = await score("raises", "q", max_attempts=3)
    assert (len(rewards.calls), result.reward) == (3, None)
    assert result.error == "ValueError: cannot judge 'q'"


async def test_an_exception_that_cannot_say_what_it_is_fails_its_trajectory_all_the_same() -> None:
    (result,) = await score("raises_without_a_text", "q", max_attempts=1)
    assert (result.outcome, result.error) == (ScoreOutcome.FAILED, "Speechless: its text raises KeyError")


async def test_a_reward_that_succeeds_on_a_later_attempt_counts() -> None:
    (result,) = await score("succeeds_at_third_call", "q", max_attempts=3)
    assert (result.outcome, result.reward) == (ScoreOutcome.SCORED, 0.5)


@pytest.mark.parametrize(
    ("name", "still_hanging"), [("hangs_on_x", True), ("hangs_on_x_async", False), ("blocks_on_x_async", True)]
)
async def test_one_hanging_reward_fails_alone_and_the_event_loop_stays_free(name: str, still_hanging: bool) -> None:
    results = await score(name, "a", "x", "b", timeout_s=0.3, max_attempts=1)
    assert outcomes(results) == [ScoreOutcome.SCORED, ScoreOutcome.FAILED, ScoreOutcome.SCORED]
    assert "no result within reward.timeout_s=0.3" in results[1].error
    # A reward that blocked this loop would have returned before the scores did; one that awaits is cancelled.
    assert bool(rewards.hanging) is still_hanging


async def test_after_an_async_reward_blocked_its_loop_each_call_has_a_thread() -> None:
    section = RewardSection(
        function="tests.support.rewards:blocks_on_x_async", timeout_s=0.2, max_attempts=1, max_concurrency=4
    )
    calls = UserCalls("reward", rewards.blocks_on_x_async, section)
    failed = await score_one(calls, section, 0, sample("x"))
    assert failed.error == "no result within reward.timeout_s=0.2"
    assert (await score_one(calls, section, 1, sample("a"))).reward == 1.0
    assert calls.abandoned == 2


async def test_hanging_calls_are_bounded_and_a_returning_one_makes_room() -> None:
    section = RewardSection(timeout_s=0.05, max_attempts=1, max_concurrency=2)
    calls = UserCalls("reward", rewards.hangs_on_x, section)
    await asyncio.gather(*(score_one(calls, section, i, sample("x")) for i in range(2)))
    refused = await score_one(calls, section, 2, sample("a"))
    assert "2 earlier calls still run" in refused.error
    await release(calls)
    assert (await score_one(calls, section, 3, sample("a"))).reward == 1.0


async def test_a_cancelled_score_leaves_its_thread_counted() -> None:
    calls = UserCalls("reward", rewards.hangs_on_x, RewardSection(timeout_s=30))
    task = asyncio.create_task(calls.call(sample("x")))
    while not rewards.hanging:  # noqa: ASYNC110  (a thread sets no asyncio event)
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.abandoned == 1
    await release(calls)


async def test_slow_rewards_run_side_by_side() -> None:
    """Field report 99: of 256 rewards none returns before 64 are in progress."""
    all_at_once = threading.Barrier(64)

    def slow(_: RewardSample) -> float:
        all_at_once.wait(timeout=60)
        return 1.0

    section = RewardSection(max_concurrency=64, timeout_s=60)
    calls = UserCalls("reward", slow, section)
    scores = await asyncio.gather(*(score_one(calls, section, i, sample("")) for i in range(256)))
    assert [item.reward for item in scores] == [1.0] * 256


async def test_a_reward_that_exits_fails_its_trajectory_not_the_worker() -> None:
    (result,) = await score("exits", "q", max_attempts=1)
    assert result.error == "RuntimeError: SystemExit: reward ends the process"


async def test_a_group_reward_gets_all_samples_in_order() -> None:
    section = RewardSection(function="tests.support.rewards:group_rank", scope="group")
    calls = UserCalls("reward", rewards.group_rank, section)
    scores = await score_group(calls, section, [4, 5, 6], [sample(text) for text in ("ccc", "a", "bb")])
    assert [(item.index, item.reward) for item in scores] == [(4, 2.0), (5, 0.0), (6, 1.0)]


@pytest.mark.parametrize(
    ("name", "reason"), [("group_short", "returned 1 values for 2 samples"), ("length", "AttributeError")]
)
async def test_a_group_reward_that_fails_fails_every_trajectory(name: str, reason: str) -> None:
    section = RewardSection(function=f"tests.support.rewards:{name}", scope="group", max_attempts=1)
    calls = UserCalls("reward", load_reward(section.function), section)
    scores = await score_group(calls, section, [0, 1], [sample("a"), sample("b")])
    assert outcomes(scores) == [ScoreOutcome.FAILED] * 2
    assert reason in scores[0].error


@pytest.mark.parametrize("value", [None, "1.0", float("nan"), float("inf"), {"acc": 1.0}, [1.0], 1j])
def test_what_is_no_finite_number_is_a_failure(value: object) -> None:
    with pytest.raises(UserCodeFailed, match="returned"):
        number(value)


def test_booleans_and_integers_are_numbers() -> None:
    assert (number(True), number(0)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests.support.rewards", "allowed: package.module:function"),
        ("tests.support.none:f", "No module named 'tests.support.none'"),
        ("tests.support.rewards:lenght", r"has no 'lenght' \(did you mean 'length'\?\)"),
        ("tests.support.rewards:not_a_function", "is a int, not a function"),
        ("tests.support.rewards:of_two", r"takes \(solution, truth\); allowed: a function of one argument, the sample"),
        ("tests.support.broken_reward:f", r"(?s)broken_reward.py.*ZeroDivisionError"),
    ],
)
def test_an_import_path_that_leads_nowhere_is_refused_naming_it(path: str, reason: str) -> None:
    with pytest.raises(RewardLoadError, match=reason):
        load_reward(path)


def test_an_edited_reward_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_reward.py"
    for number_of_edit, value in enumerate((1, 22)):
        file.write_text(f"def f(sample): return {value}")
        os.utime(file, ns=(number_of_edit, number_of_edit))
        assert load_reward("edited_reward:f")(None) == value
