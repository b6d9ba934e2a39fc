"""The worked examples of docs/extending.md, each run as the part that it extends would run it."""

import importlib
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from psrl.activities.filters.verdict import Verdicts
from psrl.activities.rewards.compute import score_samples
from psrl.activities.rewards.judge import recipe
from psrl.activities.training.algorithms.algorithm import Algorithm, Tokens
from psrl.activities.user_code.calls import UserCalls
from psrl.schemas.config import RewardSection, parse_config
from psrl.schemas.ids import GroupId, InstanceId
from psrl.schemas.messages.rewards import RewardSample, SampleTurn, Score, ScoredGroup, ScoredTrajectory, Verdict
from psrl.workers.coordinator.policies.routing.contract import Candidate, RoutingSnapshot
from tests.support.pages import blocks

LEAST = {"model": {"path": "m"}, "data": {"train_files": ["t"]}, "psrl": {"rollout_n": 2}}
EXAMPLES = {
    block.text.splitlines()[0].removeprefix("# "): block.text
    for block in blocks("python")
    if block.page.name == "extending.md"
}
"""By the file that each is said to be."""
CONFIGURATIONS = [block.text for block in blocks("yaml") if block.page.name == "extending.md"]


@pytest.fixture(autouse=True)
def _my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_package").mkdir()
    for file, text in EXAMPLES.items():
        if file.startswith("my_package/"):
            (tmp_path / file).write_text(text)
    importlib.invalidate_caches()


def configured(text: str) -> Any:
    values = OmegaConf.to_container(OmegaConf.merge(LEAST, OmegaConf.create(text)))
    assert isinstance(values, dict)
    return parse_config({str(key): value for key, value in values.items()})


def example(file: str, tmp_path: Path) -> ModuleType:
    path = tmp_path / Path(file).name
    path.write_text(EXAMPLES[file])
    module = ModuleType(path.stem)
    vars(module).update(runpy.run_path(str(path)))
    return module


async def test_the_reward() -> None:
    reward = configured(CONFIGURATIONS[0]).reward
    calls = UserCalls("reward", recipe(reward), reward)
    texts = {"data_source": "", "prompt_text": "3+4=", "ground_truth": "7", "extra": {}, "prompt_ids": []}
    right = RewardSample(response_text="it is 7", response_ids=[1, 2, 3], **texts)
    wrong = right.model_copy(update={"response_text": "7 or 8"})
    scores: list[Score] = await score_samples(calls, reward, [0, 1], [right, wrong])
    assert [score.reward for score in scores] == pytest.approx([0.997, -0.003])
    assert [score.metrics["acc"] for score in scores] == [1.0, 0.0]


async def test_rewards_taken_over_from_other_trainers(tmp_path: Path) -> None:
    chosen = configured(CONFIGURATIONS[1]).reward
    file = tmp_path / chosen.function.partition(":")[0]
    sample = RewardSample(
        data_source="",
        prompt_text="",
        messages=[{"role": "user", "content": "3+4?"}],
        response_text="7 is easy",
        ground_truth="7",
        extra={"level": "easy"},
        prompt_ids=[],
        response_ids=[],
    )
    found = []
    for function, kwargs in (("compute_score", chosen.kwargs), ("mentions_the_level", {})):
        reward = RewardSection(function=f"{file}:{function}", kwargs=kwargs)
        calls = UserCalls("reward", recipe(reward), reward)
        (score,) = await score_samples(calls, reward, [0], [sample])
        found.append(score.reward)
    assert found == [2.0, 1.0]


async def test_the_reward_of_several_turns() -> None:
    reward = RewardSection(function="my_package.conversations:score", max_attempts=1)
    calls = UserCalls("reward", recipe(reward), reward)
    said = [("", "ask: 3?"), ("3", "and 4?"), ("4", "7")]
    sample = RewardSample(
        data_source="",
        prompt_text="3+4=",
        response_text="ask: 3?3and 4?47",
        ground_truth="7",
        extra={},
        prompt_ids=[],
        response_ids=[],
        turns=[SampleTurn(environment=environment, policy=policy) for environment, policy in said],
        outcome_reward=1.0,
    )
    silent = sample.model_copy(update={"outcome_reward": None})
    scores = await score_samples(calls, reward, [0, 1], [sample, silent])
    assert (scores[0].reward, scores[0].metrics) == (pytest.approx(0.9), {"questions": 2.0})
    assert scores[1].error == "ValueError: the environment gave no reward"


async def test_the_group_filter() -> None:
    config = configured(CONFIGURATIONS[2])

    def group(right: int) -> ScoredGroup:
        members = [ScoredTrajectory(index=i, reward=0.5, metrics={"acc": float(i < right)}) for i in range(8)]
        return ScoredGroup(group_id=GroupId("000001"), trajectories=tuple(members))

    verdicts = Verdicts()
    assert (await verdicts.of("run", config, group(7))).verdict is Verdict.KEEP
    dropped = await verdicts.of("run", config, group(8))
    assert (dropped.verdict, dropped.reason) == (Verdict.DROP, "8 of 8 answers are right")


def test_the_algorithm(tmp_path: Path) -> None:
    estimator = example("activities/training/algorithms/median.py", tmp_path).advantages
    loss = example("activities/training/algorithms/unclipped.py", tmp_path).policy_loss
    config = configured('reward: {function: "a:b"}')
    algorithm = Algorithm(config, estimator, loss)
    assert algorithm.advantages([0.0, 1.0, 9.0, None, 2.0, None], [0, 0, 0, 0, 1, 2]) == [
        -1.0,
        0.0,
        8.0,
        None,
        0.0,
        None,
    ]
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = Tokens(
        new=new,
        old=torch.tensor([-1.0, -2.5]),
        advantage=torch.tensor([2.0, -1.0]),
        sequence=torch.tensor([0, 1]),
        reference=None,
        importance=None,
    )
    found = algorithm.token_loss(tokens)
    assert found.loss.tolist() == pytest.approx([-2.0, torch.tensor(0.5).exp().item()])
    found.loss.sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == pytest.approx([-2.0, torch.tensor(0.5).exp().item()])


def test_the_routing_policy(tmp_path: Path) -> None:
    policy = example("workers/coordinator/policies/routing/most_room.py", tmp_path).most_room
    candidates = [Candidate(InstanceId(f"rollout-{i}"), 3, load, 8) for i, load in enumerate((5, 2, 2))]
    assert policy(RoutingSnapshot(candidates, None, 0.5)).instance == "rollout-1"


def test_every_example_of_the_page_is_run() -> None:
    assert set(EXAMPLES) == {
        "my_package/rewards.py",
        "my_package/filters.py",
        "my_package/taken_over.py",
        "my_package/conversations.py",
        "activities/training/algorithms/median.py",
        "activities/training/algorithms/unclipped.py",
        "workers/coordinator/policies/routing/most_room.py",
    }
    assert len(CONFIGURATIONS) == 3
