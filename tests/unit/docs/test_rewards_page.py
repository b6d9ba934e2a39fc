"""The examples of docs/rewards.md, each scored as a run would score it."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from psrl.activities.rewards.weighted import RewardCalls
from psrl.schemas.config import RewardSection, parse_config
from psrl.schemas.config.built_in_rewards import OPTIONS, BuiltInReward
from psrl.schemas.messages.rewards import RewardSample, Score
from psrl.workers.cli.config_docs import leaves, row
from tests.support.judge_server import judge_server, says
from tests.support.pages import ROOT, blocks
from tests.support.rewards import answered

PAGE = ROOT / "docs" / "rewards.md"
EXAMPLES = [block.text for block in blocks("yaml") if block.page == PAGE]
LEAST = {"model": {"path": "m"}, "data": {"train_files": ["t"]}, "psrl": {"rollout_n": 2}}
ADDS = "So:\n```python\ndef add(a, b):\n    return a + b\n```\n"
TESTS = ["assert add(1, 2) == 3", "assert add(2, 2) == 5"]


def example(number: int, **kwargs: Any) -> RewardSection:
    """`kwargs`: others for whoever asks a judge."""
    values = OmegaConf.to_container(OmegaConf.merge(LEAST, OmegaConf.create(EXAMPLES[number])), resolve=True)
    assert isinstance(values, dict)
    reward = values["reward"]
    for one in (reward, *reward.get("functions", {}).values()):
        if one.get("function") == "llm_judge":
            one["kwargs"] |= kwargs
    return parse_config({str(key): value for key, value in values.items()}).reward


@pytest.fixture(autouse=True)
def _my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of docs/extending.md."""
    (code,) = (block.text for block in blocks("python") if block.text.startswith("# my_package/rewards.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("JUDGE_KEY", "swordfish")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "rewards.py").write_text(code)
    importlib.invalidate_caches()


async def score(reward: RewardSection, sample: RewardSample) -> Score:
    calls = RewardCalls(reward)
    try:
        (found,) = await calls.score([0], [sample])
        return found
    finally:
        calls.close()


async def test_several_rewards() -> None:
    sample = answered(f"{ADDS}It is 7", response_ids=[1] * 150, ground_truth="7", extra={"test_list": TESTS[:1]})
    found = await score(example(0), sample)
    assert found.metrics == pytest.approx(
        {
            "correct": 0.85,
            "correct/acc": 1.0,
            "code": 1.0,
            "code/passed": 1.0,
            "code/tests": 1.0,
            "code/has_code": 1.0,
            "code/timed_out": 0.0,
            "length": -0.5,
            "length/hit": 1.0,
        }
    )
    assert found.reward == pytest.approx(0.85 + 2 * 1 + 0.5 * -0.5)


async def test_tests_of_code() -> None:
    found = await score(example(1), answered(ADDS, extra={"test_list": TESTS}))
    assert (found.reward, found.metrics["passed"]) == (0.5, 1.0)


async def test_a_judge() -> None:
    with judge_server() as server:
        server.script = [says(r"\boxed{True}")]
        found = await score(example(2, base_url=server.base_url), answered("7", ground_truth="7"))
        assert (found.reward, server.requests[0]["authorization"]) == (1.0, "Bearer swordfish")


async def test_a_judge_with_a_prompt_of_ones_own() -> None:
    with judge_server() as server:
        server.script = [says("Well put. Score: 8")]
        found = await score(example(3, base_url=server.base_url), answered("7", ground_truth="7"))
        assert found.reward == pytest.approx(0.1 * 8 + 1.0)
        question = server.requests[0]["messages"][0]["content"]
    assert question == 'How clear is this answer, from 1 to 10?\n7\nEnd with "Score: N".\n'


async def test_the_outcome() -> None:
    found = await score(example(4), answered("done", response_ids=[1] * 7168, outcome_reward=1.0))
    assert (found.reward, found.metrics["solved"]) == (pytest.approx(1 + 0.2 * -0.5), 1.0)


def test_the_page_has_every_built_in_reward_with_all_its_arguments() -> None:
    page = PAGE.read_text()
    for name in BuiltInReward:
        assert f"`{name}`\n" in page
        for field, of in OPTIONS[name].model_fields.items():
            for key, leaf in leaves(field, of):
                assert row(key, leaf) in page


def test_every_example_of_the_page_is_run() -> None:
    assert len(EXAMPLES) == 5
