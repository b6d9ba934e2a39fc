"""One reward function of each signature and kind, admitted and asked about real answers as a run would."""

from typing import NamedTuple

import pytest

from psrl.activities.rewards.compute import score_samples
from psrl.activities.rewards.judge import recipe
from psrl.activities.rewards.load import check_columns, check_reward, chosen_for
from psrl.activities.rewards.shapes import columns_of
from psrl.activities.user_code.calls import UserCalls
from psrl.schemas.config import RewardSection
from psrl.schemas.errors import RewardLoadError
from psrl.schemas.messages.rewards import RewardSample
from tests.compatibility.matrix import YES, Record

SHAPES = "tests.unit.activities.rewards.test_shapes"
HOSTILE = "tests.support.hostile_rewards"


class Case(NamedTuple):
    name: str
    function: str
    rewards: tuple[float | None, ...]
    """Of the answers `7` and `x`; None for one that must fail and say why. Empty: refused at admission."""


CASES = (
    Case("RewardSample", "tests.support.rewards:length", (1.0, 1.0)),
    Case("RewardSample, async", "tests.support.rewards:length_async", (1.0, 1.0)),
    Case("veRL: compute_score", f"{SHAPES}:verl", (1.0, 0.0)),
    Case("veRL: keyword-only, dict with score", f"{SHAPES}:verl_by_keyword", (1.0, 0.0)),
    Case("veRL: async", f"{SHAPES}:verl_async", (1.0, 0.0)),
    Case("veRL: solution_str and ground_truth only", f"{SHAPES}:verl_gsm8k", (1.0, 0.0)),
    Case("veRL: batch", f"{SHAPES}:verl_batch", (1.0, 0.0)),
    Case("veRL: a file by its path", "examples/gsm8k/reward.py:compute_score", (0.0, 0.0)),
    Case("TRL: prompts, completions, columns", f"{SHAPES}:trl", (1.0, 0.0)),
    Case("an object, a partial", f"{SHAPES}:partial", (3.0, 0.0)),
    Case("uses signal.alarm", f"{HOSTILE}:limited", (1.0, 1.0)),
    Case("math-verify", "examples/gsm8k/verified.py:compute_score", (1.0, 0.0)),
    Case("swallows the refusal of its alarm", f"{HOSTILE}:limited_out_of_sight", (1.0, 1.0)),
    Case("segfaults on one answer", f"{HOSTILE}:crashes_on_x", (1.0, None)),
    Case("calls os._exit on one answer", f"{HOSTILE}:exits_on_x", (1.0, None)),
    Case("holds the interpreter on one answer", f"{HOSTILE}:holds_the_interpreter_on_x", (1.0, None)),
    Case("allocates without end on one answer", f"{HOSTILE}:allocates_on_x", (1.0, None)),
    Case("a generator", f"{HOSTILE}:yields", ()),
    Case("f(solution, truth)", "tests.support.rewards:of_two", ()),
    Case("TRL: wants its trainer's state", f"{SHAPES}:trl_with_trainer", ()),
    Case("fails on import", "tests.support.broken_reward:f", ()),
)
ENDS_ITS_HOST = {"crashes_on_x", "exits_on_x", "holds_the_interpreter_on_x", "allocates_on_x"}
"""Asked for in processes, where a scoring task puts them once they have ended their host."""


def sample(answer: str) -> RewardSample:
    return RewardSample(
        data_source="openai/gsm8k",
        prompt_text="<user>3+4?",
        messages=[{"role": "user", "content": "3+4?"}],
        response_text=answer,
        ground_truth="7",
        extra={"extra_info": {"index": 4}, "level": "easy"},
        prompt_ids=[1],
        response_ids=[2, 3],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_reward_of_this_kind_is_admitted_and_scores_or_is_refused_by_name(case: Case, record: Record) -> None:
    if "verified" in case.function:
        pytest.importorskip("math_verify")
    isolation = "process" if case.function.partition(":")[2] in ENDS_ITS_HOST else "auto"
    reward = RewardSection.model_validate(
        {"function": case.function, "isolation": isolation, "max_attempts": 1, "timeout_s": 10, "memory_gb": 0.25}
    )
    samples = [sample("7"), sample("x")]
    try:
        found = check_reward(reward)
        check_columns(reward, found, columns_of(samples[0]))
    except RewardLoadError as refusal:
        record("rewards", case.name, {"admitted": "refused"}, str(refusal).splitlines()[0])
        assert not case.rewards
        return
    calls = UserCalls("reward", recipe(reward), reward)
    scores = await score_samples(calls, reward, [0, 1], samples)
    calls.close()
    remark = "; ".join(filter(None, [chosen_for(reward, found), *(score.error for score in scores)]))
    as_expected = tuple(score.reward for score in scores) == case.rewards
    told = YES if None not in case.rewards else "the others; that one fails"
    record("rewards", case.name, {"admitted": YES, "scored": told if as_expected else "no"}, remark)
    assert as_expected, scores
