"""Reward functions are user code: whatever they do costs nobody but the trajectory they judge."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from psrl.activities.rewards.compute import score_samples
from psrl.activities.rewards.judge import About, recipe
from psrl.activities.rewards.reading import number, reading
from psrl.activities.user_code.calls import UserCalls
from psrl.activities.user_code.prepared import Recipe
from psrl.schemas.config import RewardSection
from psrl.schemas.errors import UserCodeFailed
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


def section(name: str = "length", **limits: Any) -> RewardSection:
    path = name if ":" in name else f"tests.support.rewards:{name}"
    return RewardSection.model_validate({"function": path, "isolation": "thread", **limits})


def opened(reward: RewardSection) -> UserCalls:
    return UserCalls("reward", recipe(reward), reward)


async def score(name: str, *texts: str, **limits: Any) -> list[Score]:
    reward = section(name, **limits)
    return await judged(opened(reward), reward, *texts)


async def judged(calls: UserCalls, reward: RewardSection, *texts: str) -> list[Score]:
    return await score_samples(calls, reward, range(len(texts)), [sample(text) for text in texts])


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


RAISED = {
    "nul": r"ValueError: an answer with \x00 and \ud800 in it",
    "speechless": "Speechless: its text raises SystemExit",
    "exit": "SystemExit: reward ends the process",
    "interrupt": "KeyboardInterrupt: by hand",
    "cancelled": "CancelledError: by itself",
    "closed": "GeneratorExit",
    "stop": "StopIteration: 3",
    "huge": "ValueError: " + "x" * 288,
    "unpicklable": "Unpicklable: ('cannot be sent', <function Unpicklable.__init__.<locals>.<lambda> at",
    "group": "ExceptionGroup: two (2 sub-exceptions): ValueError: the first",
    "empty": "ValueError",
    "unnamed": "Unnamed: by its class",
    "lines": "ValueError: the reason",
}


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("name", ["raises", "raises_async"])
async def test_whatever_is_raised_becomes_one_line_that_can_be_stored(name: str, isolation: str) -> None:
    # A coroutine cannot raise it: Python makes another error of it.
    expected = RAISED | ({"stop": "RuntimeError: coroutine raised StopIteration"} if name == "raises_async" else {})
    reward = section(f"tests.support.hostile_rewards:{name}", isolation=isolation, max_attempts=1)
    calls = opened(reward)
    scores = await judged(calls, reward, *expected)
    calls.close()
    assert outcomes(scores) == [ScoreOutcome.FAILED] * len(expected)
    for one, begin in zip(scores, expected.values(), strict=True):
        assert one.error.startswith(begin)
        assert len(one.error) <= 300
        one.error.encode()


async def test_an_exception_that_cannot_be_told_takes_its_own_time_only() -> None:
    """Told on the worker's event loop, it would hold every other call as well."""
    name = "tests.support.hostile_rewards:raises_endlessly"
    (result,) = await score(name, "q", timeout_s=0.3, max_attempts=1)
    assert result.error == "no result within reward.timeout_s=0.3"


async def test_a_recursion_without_end_is_a_failure() -> None:
    (result,) = await score("tests.support.hostile_rewards:recurses", "q", max_attempts=1)
    assert result.error.startswith("RecursionError: maximum recursion")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("unspeakable", "returned a Unspeakable whose repr raises KeyError"),
        ("iterator", "returned a list_iterator"),
        ("nothing", "returned None"),
        ("text", "returned '1.0'"),
        ("list", "returned [1.0]"),
        ("class", "returned <class 'float'>"),
    ],
)
async def test_a_returned_value_that_is_no_number_is_told_by_name(value: str, reason: str) -> None:
    (result,) = await score("tests.support.hostile_rewards:returns", value, max_attempts=1)
    assert result.error == f"{reason}; allowed: one finite number, or a dict that has 'score'"


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
    reward = section("blocks_on_x_async", timeout_s=0.2, max_attempts=1, max_concurrency=4)
    calls = opened(reward)
    (failed,) = await judged(calls, reward, "x")
    assert failed.error == "no result within reward.timeout_s=0.2"
    (scored,) = await judged(calls, reward, "a")
    assert (scored.reward, calls.abandoned) == (1.0, 2)


async def test_hanging_calls_are_bounded_and_a_returning_one_makes_room() -> None:
    reward = section("hangs_on_x", timeout_s=0.05, max_attempts=1, max_concurrency=2)
    calls = opened(reward)
    await judged(calls, reward, "x", "x")
    (refused,) = await judged(calls, reward, "a")
    assert "2 earlier calls still run" in refused.error
    await release(calls)
    (scored,) = await judged(calls, reward, "a")
    assert scored.reward == 1.0


async def test_a_cancelled_score_leaves_its_thread_counted() -> None:
    reward = section("hangs_on_x", timeout_s=30)
    calls = opened(reward)
    task = asyncio.create_task(judged(calls, reward, "x"))
    while not rewards.hanging:  # noqa: ASYNC110  (a thread sets no asyncio event)
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.abandoned == 1
    await release(calls)


class Slow:
    """A reward of which none returns before so many are in progress."""

    is_async = False
    about = About("(sample)", by_group=False, columns=frozenset())

    def __init__(self, calls: int, at_once: int | None = None) -> None:
        self._all_at_once = threading.Barrier(calls)
        self.at_once = at_once
        self._running: set[int] = set()

    def function(self, sample: RewardSample) -> float:
        """How many were in progress at most, itself included."""
        self._running.add(threading.get_ident())
        try:
            self._all_at_once.wait(timeout=60)
            return float(len(self._running))
        finally:
            self._running.discard(threading.get_ident())

    def ask(self, argument: Any) -> Any:
        return self.function(argument.samples[0])

    def read(self, argument: Any, returned: Any) -> Any:
        return [reading(returned)]


async def test_slow_rewards_run_side_by_side() -> None:
    """Field report 99: of 256 rewards none returns before 64 are in progress."""
    reward = section(max_concurrency=64, timeout_s=60)
    scores = await judged(UserCalls("reward", Recipe(Slow, (64,)), reward), reward, *[""] * 256)
    assert [item.outcome for item in scores] == [ScoreOutcome.SCORED] * 256


async def test_of_a_reward_that_stands_few_calls_at_a_time_no_more_are_made() -> None:
    """Of 12 calls that wait for one another two by two, none is ever the third."""
    reward = section(max_concurrency=64, timeout_s=60)
    scores = await judged(UserCalls("reward", Recipe(Slow, (2, 2)), reward), reward, *[""] * 12)
    assert max(item.reward or 99 for item in scores) <= 2


async def test_a_group_reward_gets_all_samples_in_order() -> None:
    reward = section("group_rank", scope="group")
    samples = [sample(text) for text in ("ccc", "a", "bb")]
    scores = await score_samples(opened(reward), reward, [4, 5, 6], samples)
    assert [(item.index, item.reward) for item in scores] == [(4, 2.0), (5, 0.0), (6, 1.0)]


@pytest.mark.parametrize(
    ("name", "reason"), [("group_short", "returned 1 values for 2 samples"), ("length", "AttributeError")]
)
async def test_a_group_reward_that_fails_fails_every_trajectory(name: str, reason: str) -> None:
    scores = await score(name, "a", "b", scope="group", max_attempts=1)
    assert outcomes(scores) == [ScoreOutcome.FAILED] * 2
    assert reason in scores[0].error


@pytest.mark.parametrize("value", [None, "1.0", float("nan"), float("inf"), {"acc": 1.0}, [1.0], 1j, iter([1.0])])
def test_what_is_no_finite_number_is_a_failure(value: object) -> None:
    with pytest.raises(UserCodeFailed, match="returned"):
        number(value)


def test_booleans_and_integers_are_numbers() -> None:
    assert (number(True), number(0)) == (1.0, 0.0)
