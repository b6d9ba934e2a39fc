"""The worked examples of docs/environments.md, each used as a run would use it."""

import asyncio
import importlib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from psrl.activities.environments.environment import Action, Environment, Step, Task, user_says
from psrl.activities.environments.load import load_environment
from psrl.activities.environments.tools.functions import PythonTool
from psrl.schemas.config import RunConfig, parse_config
from tests.support.pages import blocks

LEAST = {
    "model": {"path": "m"},
    "data": {"train_files": ["t"]},
    "psrl": {"rollout_n": 2},
    "reward": {"function": "m:f"},
}
PAGE = [block for block in blocks() if block.page.name == "environments.md"]
MODULES = {b.text.splitlines()[0].removeprefix("# "): b.text for b in PAGE if b.language == "python"}
GUESSING, CALLING = (block.text for block in PAGE if block.language == "yaml")


@pytest.fixture(autouse=True)
def _my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_package").mkdir()
    for file, text in MODULES.items():
        (tmp_path / file).write_text(text)
    importlib.invalidate_caches()


def configured(text: str) -> RunConfig:
    values = OmegaConf.to_container(OmegaConf.merge(LEAST, OmegaConf.create(text)))
    assert isinstance(values, dict)
    return parse_config({str(key): value for key, value in values.items()})


def test_the_guessing_game_is_an_environment() -> None:
    environment: Environment = load_environment(configured(GUESSING).psrl.agentic_rl)()

    async def play(*said: str) -> list[Step]:
        task = Task(prompt_text="", messages=None, data_source="", ground_truth="7", extra={}, seed=0)
        await environment.reset(task)
        return [await environment.step(Action(turn, text)) for turn, text in enumerate(said)]

    assert asyncio.run(play("5", "nine", "9", "7")) == [
        Step(user_says("higher")),
        Step(user_says("A number, please."), reward=-0.1),
        Step(user_says("lower")),
        Step(reward=1.0, done=True),
    ]


def test_the_weather_is_a_tool() -> None:
    path, _ = configured(CALLING).psrl.agentic_rl.tools
    parameters = PythonTool(path).schema["function"]["parameters"]
    assert parameters["properties"]["days"] == {"type": "integer", "description": "how many", "default": 1}
    assert parameters["required"] == ["city"]
