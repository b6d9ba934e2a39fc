"""Rewards that a veRL user brings, on answers as models write them."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from psrl.activities.rewards.compute import score_samples
from psrl.activities.rewards.judge import recipe
from psrl.activities.user_code.calls import UserCalls
from psrl.schemas.config import RewardSection
from psrl.schemas.messages.rewards import RewardSample, Score

REASONED = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nTogether 48+24 = <<48+24=72>>72 clips.\n"


def sample(answer: str, ground_truth: str) -> RewardSample:
    return RewardSample(
        data_source="openai/gsm8k",
        prompt_text="",
        response_text=answer,
        ground_truth=ground_truth,
        extra={"extra_info": {"split": "train", "index": 0}},
        prompt_ids=[],
        response_ids=[],
    )


class Judged:
    """One reward function, given as its users name it."""

    def __init__(self, function: str) -> None:
        self._reward = RewardSection(function=function, max_attempts=1)
        self.calls = UserCalls("reward", recipe(self._reward), self._reward)

    async def score(self, *pairs: tuple[str, str]) -> list[Score]:
        samples = [sample(*pair) for pair in pairs]
        return await score_samples(self.calls, self._reward, range(len(pairs)), samples)


@pytest.fixture
def judged() -> Iterator[Any]:
    every: list[Judged] = []

    def of(function: str) -> Judged:
        every.append(Judged(function))
        return every[-1]

    yield of
    for one in every:
        one.calls.close()


@pytest.mark.parametrize("path", ["examples/gsm8k/reward.py:compute_score", "examples.gsm8k.reward:compute_score"])
async def test_a_verl_users_file_judges_as_it_does_there(judged: Any, path: str) -> None:
    scores = await judged(path).score(
        (f"{REASONED}#### 72", "72"),
        (f"{REASONED}#### 1,072", "1072"),
        (f"{REASONED}#### 24", "72"),
        ("#### 24, no: #### -72", "-72"),
        (f"{REASONED}The answer is 72", "72"),
        ("#### 72" + " and on" * 100, "72"),
        ("", "72"),
    )
    assert [one.reward for one in scores] == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_the_file_is_one_that_a_verl_user_could_have() -> None:
    from examples.gsm8k import reward

    assert "psrl" not in inspect.getsource(reward)
    assert list(inspect.signature(reward.compute_score).parameters) == [
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
    ]


async def test_math_verify_compares_mathematics_in_processes_that_it_needs(judged: Any) -> None:
    pytest.importorskip("math_verify")
    run = judged("examples/gsm8k/verified.py:compute_score")
    scores = await run.score(
        (rf"{REASONED}\boxed{{72}}", "72"),
        (r"The probability is $\boxed{0.5}$.", r"\frac{1}{2}"),
        (r"Thus $x^2 + 2x + 1 = \boxed{(x+1)^2}$", "x^2+2x+1"),
        (r"We get $\boxed{\frac{6}{8}}$", r"\frac{3}{4}"),
        (r"\boxed{24}", "72"),
        ("I do not know.", "72"),
        (r"\boxed{72}", ""),
        (r"It is $\boxed{10^{10^{10}}}$", "72"),
    )
    assert run.calls.apart
    assert [one.reward for one in scores] == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, None, None]
    assert scores[6].error == "ValueError: ground truth '' of openai/gsm8k cannot be read as mathematics"
    assert scores[7].error.startswith("TimeoutException")
