"""The calculator example: its data, its environment, its reward, and what its warm-up teaches."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from examples.arithmetic.demo_model import make_tokenizer
from examples.calculator.demo_model import Recipe, conversations, make_lessons
from examples.calculator.environment import Calculator, work_out
from examples.calculator.generate import all_sums, generate
from psrl.activities.capture.render import Template
from psrl.activities.environments.environment import Action, Step, Task
from psrl.schemas.config.load import load_config

TASK = Task(prompt_text="", messages=None, data_source="", ground_truth="92", extra={}, seed=0)


def played(*said: str) -> list[Step]:
    async def play() -> list[Step]:
        environment = Calculator()
        await environment.reset(TASK)
        return [await environment.step(Action(turn, text)) for turn, text in enumerate(said)]

    return asyncio.run(play())


def test_the_same_arguments_give_the_same_rows_and_no_sum_twice(tmp_path: Path) -> None:
    first, second = (generate(tmp_path / name, train=50, validation=10, seed=3) for name in "ab")
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    rows = [json.loads(line) for file in first for line in file.read_text().splitlines()]
    assert len({row["prompt"][0]["content"] for row in rows}) == len(rows) == 60
    assert all(len(item.answer) == 2 for item in all_sums())


def test_more_rows_than_there_are_sums_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed are 1 or more, together"):
        generate(tmp_path, train=10_000, validation=1, seed=0)


def test_the_calculator_is_asked_and_then_the_answer_is_judged() -> None:
    asked, answered = played("?34+58", "92")
    assert asked == Step([{"role": "tool", "content": "92"}])
    assert answered == Step(reward=1.0, done=True, info={"asked": 1})
    assert played("71") == [Step(reward=0.0, done=True, info={"asked": 0})]


@pytest.mark.parametrize("expression", ["", "34+", "34+58+1", "٣+1", "1e3+1", "34 + 58"])
def test_what_is_no_sum_of_two_numbers_is_not_worked_out(expression: str) -> None:
    assert work_out(expression) == "error"


def test_the_warm_up_teaches_what_the_policy_says_and_nothing_else() -> None:
    torch.manual_seed(0)
    tokenizer, recipe = make_tokenizer(), Recipe(ask_share=1.0, heed_share=1.0)
    (said,) = conversations(recipe, 1)
    torch.manual_seed(0)
    lessons = make_lessons(tokenizer, recipe, 1)
    ids, labels = lessons.ids[0], lessons.labels[0]
    taught = tokenizer.decode(ids[labels != -100])
    assert taught == f"{said[1]['content']}<|eos|>{said[3]['content']}<|eos|>"
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(said, tokenize=False)


def test_what_the_calculator_says_is_rendered_as_in_the_warm_up() -> None:
    tokenizer = make_tokenizer()
    template = Template.open(tokenizer, [tokenizer.eos_token_id])
    sampled = tokenizer("?34+58<|eos|>", add_special_tokens=False)["input_ids"]
    ids = template.appended(sampled, {"role": "assistant", "content": "?34+58"}, played("?34+58")[0].messages)
    assert tokenizer.decode(ids) == "<|tool|>92<|assistant|>"


def test_the_configuration_is_valid() -> None:
    config = load_config(Path("examples/calculator/calculator.yaml"))
    assert config.psrl.agentic_rl.environment == "examples.calculator.environment:Calculator"
