"""Makes the calculator example's starting model on the spot: no download, half a minute on one CPU core.

    python -m examples.calculator.demo_model --out DIR [--seed S]

It has the size and the tokenizer of the arithmetic example's model. A warm-up stands for pretraining: it has seen
conversations with a calculator, in most of which nobody asks it, and in half of the others its result is not heeded. So
it knows how to ask and how to repeat, but seldom does both: that is left for reinforcement learning to find worthwhile.

Promise: the same arguments give the same bytes of weights on the same machine and versions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from examples.arithmetic.demo_model import (
    Lessons,
    Recorded,
    answer_logprobs,
    make_demo_model,
    make_model,
    one_thread,
    padded,
    teach,
)

from .environment import ASK
from .generate import BELOW, SMALLEST, all_sums

Message = dict[str, str]


@dataclass(frozen=True)
class Recipe(Recorded):
    """All that decides the weights."""

    size: str = "xs"
    seed: int = 0
    batch: int = 128
    lr: float = 2e-3
    steps: int = 600
    ask_share: float = 0.3
    """Of conversations in which the calculator is asked."""
    heed_share: float = 0.5
    """Of those in which its result is repeated; the others end with any number."""


def conversations(recipe: Recipe, count: int) -> Iterator[list[Message]]:
    sums = all_sums()
    for _ in range(count):
        item = sums[int(torch.randint(len(sums), ()))]
        said: list[Message] = [{"role": "user", "content": item.question}]
        answer = str(int(torch.randint(SMALLEST, BELOW, ())))
        if float(torch.rand(())) < recipe.ask_share:
            asked = f"{ASK}{item.a}+{item.b}"
            said += [{"role": "assistant", "content": asked}, {"role": "tool", "content": item.answer}]
            answer = item.answer if float(torch.rand(())) < recipe.heed_share else answer
        yield [*said, {"role": "assistant", "content": answer}]


def make_lessons(tokenizer: Qwen2Tokenizer, recipe: Recipe, count: int) -> Lessons:
    """Only what the assistant says is taught."""
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for said in conversations(recipe, count):
        whole: list[int] = []
        taught: list[int] = []
        for number, message in enumerate(said):
            asked = said[:number]
            if message["role"] != "assistant":
                continue
            before = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
            after = tokenizer.apply_chat_template([*asked, message], return_dict=False)
            taught += [-100] * (len(before) - len(whole)) + after[len(before) :]
            whole = after
        ids.append(whole)
        labels.append(taught)
    return Lessons(padded(ids, tokenizer.pad_token_id), padded(labels, -100))


def train_model(recipe: Recipe, tokenizer: Qwen2Tokenizer, say: Callable[[str], None]) -> Qwen2ForCausalLM:
    """In float32 on one thread: the order of additions, and so every weight, is then fixed."""
    with one_thread(), torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = make_model(recipe.size, tokenizer)
        lessons = make_lessons(tokenizer, recipe, 40 * recipe.batch)

        def next_batch() -> Lessons:
            return lessons.rows(torch.randint(len(lessons.ids), (recipe.batch,)))

        for step in teach(model, recipe.lr, next_batch):
            if step >= recipe.steps:
                break
        with torch.no_grad():
            likely = float(answer_logprobs(model, lessons.rows(torch.arange(recipe.batch))).mean())
        say(f"warm-up step {step:5d}  log-probability of a conversation {likely:.2f}")
        return model


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the calculator example's starting model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    args = parser.parse_args(argv)
    try:
        make_demo_model(args.out, Recipe(seed=args.seed), train=train_model)
    except FileExistsError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
