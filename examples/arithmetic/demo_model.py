"""Makes the arithmetic example's starting model on the spot: no download, about ten seconds on one CPU core
(`--size s --digits 2`: two to three minutes).

    python -m examples.arithmetic.demo_model --out DIR [--size xs] [--digits 1] [--seed 0]

The folder is an ordinary checkpoint (config, safetensors, a one-token-per-character tokenizer with a chat
template) for plain transformers and for vLLM. The model has two flaws that reinforcement learning can mend, one
fast and one slow. It was taught sums until it gets a fixed share of them right, then to write most answers with
an unwanted `~` in front, which the exact-match reward refuses.

Promises: the same recipe on the same machine gives the same weights; a folder that already holds a model of this
recipe is left as it is; the folder appears whole or not at all.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from .generate import all_sums

RECIPE_FILE = "recipe.json"
UNWANTED_STYLE = "~"
VOCABULARY = 128  # a multiple of 64, which vLLM would otherwise pad to
CONTEXT_TOKENS = 64
EXAMINED_SUMS = 1000  # all one-digit sums; a tenth of the two-digit ones
EXAMINE_EVERY_STEPS = 10
SAY_EVERY_STEPS = 100

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHARACTERS = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
BYTE_LEVEL_NAMES = str.maketrans({" ": "\u0120", "\n": "\u010a"})  # how byte-level BPE spells these two

# Every message ends with the end token only where the model itself would write it, so the ids of a conversation
# are a prefix of the ids of the same conversation with more turns.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class Shape(NamedTuple):
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int


SIZES = {"xs": Shape(64, 2, 2, 1, 128), "s": Shape(128, 3, 4, 2, 384)}


@dataclass(frozen=True)
class Recorded:
    """All that decides the weights; a folder is reused only when every value is equal."""

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


AnyRecipe = TypeVar("AnyRecipe", bound=Recorded)


@dataclass(frozen=True)
class Recipe(Recorded):
    size: str = "xs"
    digits: int = 1
    seed: int = 0
    batch_sums: int = 128
    sums_lr: float = 1e-3
    sums_accuracy: float = 0.9
    """The first phase stops when sampling at temperature 1 is expected to get this share of sums right."""
    sums_max_steps: int = 3000
    style_lr: float = 1e-3
    style_share: float = 0.8
    """Share of answers written in the unwanted style in the second phase."""
    style_steps: int = 60

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size={self.size!r}: allowed are {', '.join(SIZES)}")


def make_tokenizer() -> Qwen2Tokenizer:
    """One id per character, so that a text and its ids tell the same story to a human reader.

    It is a byte-level BPE without merges, not a plain character table, because transformers builds exactly this
    class for a Qwen2 model and ignores any other kind found in the folder. Characters outside CHARACTERS have no
    id and are dropped.
    """
    specials = [PAD, BOS, EOS, *ROLES]
    # The ids up to the padded vocabulary get names too: an engine can then turn any id it samples into text.
    reserved = [f"<|reserved_{i}|>" for i in range(VOCABULARY - len(specials) - len(CHARACTERS))]
    names = [*specials, *CHARACTERS.translate(BYTE_LEVEL_NAMES), *reserved]
    return Qwen2Tokenizer(
        vocab={name: i for i, name in enumerate(names)},
        merges=[],
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=None,
        extra_special_tokens=[*ROLES, *reserved],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )


def make_model(size: str, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    shape = SIZES[size]
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            intermediate_size=shape.feed_forward,
            max_position_embeddings=CONTEXT_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


class Lessons(NamedTuple):
    """Whole conversations, one a row, padded on the right; `labels` is -100 outside the answer."""

    ids: torch.Tensor
    labels: torch.Tensor

    def rows(self, index: torch.Tensor) -> Lessons:
        return Lessons(self.ids[index], self.labels[index])


def make_lessons(tokenizer: Qwen2Tokenizer, digits: int) -> tuple[Lessons, Lessons]:
    """Every sum, answered plainly and answered in the unwanted style; equal rows ask the same sum.

    Validation sums are among them: this phase stands for pretraining, which has seen everything. Only the
    reinforcement learning that follows is kept away from them.
    """
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for style in ("", UNWANTED_STYLE):
        for item in all_sums(digits):
            question = [{"role": "user", "content": item.question}]
            answered = [*question, {"role": "assistant", "content": style + item.answer}]
            prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
            whole = tokenizer.apply_chat_template(answered, return_dict=False)
            ids.append(whole)
            labels.append([-100] * len(prompt) + whole[len(prompt) :])
    both = Lessons(padded(ids, tokenizer.pad_token_id), padded(labels, -100))
    plain, unwanted = torch.arange(len(ids)).chunk(2)
    return both.rows(plain), both.rows(unwanted)


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def answer_logprobs(model: Qwen2ForCausalLM, lessons: Lessons) -> torch.Tensor:
    """Log-probability of each whole answer, end token included."""
    logits = model(input_ids=lessons.ids[:, :-1], use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), lessons.labels[:, 1:], ignore_index=-100, reduction="none"
    )
    return -losses.sum(dim=1)


def expected_accuracy(model: Qwen2ForCausalLM, lessons: Lessons) -> float:
    """Share of right answers that sampling at temperature 1 gives on average; exact, so no luck decides."""
    with torch.no_grad():
        return float(answer_logprobs(model, lessons).exp().mean())


def teach(model: Qwen2ForCausalLM, lr: float, next_batch: Callable[[], Lessons]) -> Iterator[int]:
    """Plain supervised training without end: yields the number of steps taken; the caller stops pulling."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    for step in itertools.count(1):
        lessons = next_batch()
        loss = -answer_logprobs(model, lessons).sum() / (lessons.labels != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield step


def train_model(recipe: Recipe, tokenizer: Qwen2Tokenizer, say: Callable[[str], None]) -> Qwen2ForCausalLM:
    """Both phases, in float32 on one thread: the order of additions, and so every weight, is then fixed."""
    with one_thread(), torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = make_model(recipe.size, tokenizer)
        plain, unwanted = make_lessons(tokenizer, recipe.digits)
        examined = torch.randperm(len(plain.ids))[:EXAMINED_SUMS]

        def sums_batch() -> Lessons:
            return plain.rows(torch.randint(len(plain.ids), (recipe.batch_sums,)))

        def style_batch() -> Lessons:
            index = torch.randint(len(plain.ids), (recipe.batch_sums,))
            spoiled = (torch.rand(recipe.batch_sums) < recipe.style_share)[:, None]
            pairs = zip(unwanted.rows(index), plain.rows(index), strict=True)
            return Lessons(*(torch.where(spoiled, bad, good) for bad, good in pairs))

        for step in teach(model, recipe.sums_lr, sums_batch):
            if step % EXAMINE_EVERY_STEPS:
                continue
            accuracy = expected_accuracy(model, plain.rows(examined))
            if step % SAY_EVERY_STEPS == 0 or accuracy >= recipe.sums_accuracy:
                say(f"sums   step {step:5d}  accuracy {accuracy:.2f} of {recipe.sums_accuracy:.2f}")
            if accuracy >= recipe.sums_accuracy:
                break
            if step >= recipe.sums_max_steps:
                raise RuntimeError(f"the sums were not learnt in {step} steps (accuracy {accuracy:.2f}): {recipe}")
        for step in teach(model, recipe.style_lr, style_batch):
            if step >= recipe.style_steps:
                break
        say(f"style  step {step:5d}  exact match {expected_accuracy(model, plain.rows(examined)):.2f}")
        return model


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def holds(folder: Path, recipe: Recorded) -> bool:
    try:
        stored = json.loads((folder / RECIPE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return bool(stored["fingerprint"] == recipe.fingerprint)


def refuse_foreign(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / RECIPE_FILE).exists():
        raise FileExistsError(f"out={out}: holds something that is no demo model; name a new or empty folder")


def publish(scratch: Path, out: Path, recipe: Recorded) -> None:
    """Moves the finished folder into place; the loser of a race for the same recipe keeps the winner's model."""
    refuse_foreign(out)
    if (out / RECIPE_FILE).exists() and not holds(out, recipe):
        os.replace(out, scratch / "replaced")  # deleted with the scratch folder
    try:
        os.replace(scratch / "model", out)
    except OSError:
        if not holds(out, recipe):
            raise


def make_demo_model(
    out: Path,
    recipe: AnyRecipe,
    say: Callable[[str], None] = print,
    train: Callable[[AnyRecipe, Qwen2Tokenizer, Callable[[str], None]], Qwen2ForCausalLM] = train_model,
) -> bool:
    """Makes the model unless `out` already holds it; returns whether it was made."""
    if holds(out, recipe):
        say(f"{out} already holds this model")
        return False
    refuse_foreign(out)
    started = time.monotonic()
    out.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / "model"
        tokenizer = make_tokenizer()
        train(recipe, tokenizer, say).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        content = {"fingerprint": recipe.fingerprint, "recipe": asdict(recipe)}
        (folder / RECIPE_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        publish(Path(scratch), out, recipe)
    say(f"{out} made in {time.monotonic() - started:.1f} s")
    return True


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the arithmetic example's starting model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--size", choices=sorted(SIZES), default=Recipe.size)
    parser.add_argument("--digits", type=int, choices=(1, 2), default=Recipe.digits)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    args = parser.parse_args(argv)
    try:
        make_demo_model(args.out, Recipe(size=args.size, digits=args.digits, seed=args.seed))
    except FileExistsError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
