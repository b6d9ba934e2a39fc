"""Writes the data of the arithmetic example: `train.jsonl` and `validation.jsonl`.

    python -m examples.arithmetic.generate --out DIR [--digits 1] [--train N] [--validation N] [--seed S]

A row asks for one sum of two numbers of up to `--digits` digits:

    {"prompt": [{"role": "user", "content": "3+4="}], "data_source": "arithmetic/1-digit",
     "reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"split": "train", "index": 0, ...}}

Promises: the same arguments give the same bytes; no validation sum appears in the training file, not even
with its numbers swapped; validation rows are all different. There are only 100 one-digit sums, so a training
file with more rows than sums left repeats them, in whole passes that are each shuffled anew.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Sum(NamedTuple):
    a: int
    b: int

    @property
    def question(self) -> str:
        return f"{self.a}+{self.b}="

    @property
    def answer(self) -> str:
        return str(self.a + self.b)


def all_sums(digits: int) -> list[Sum]:
    """Every ordered pair of numbers of up to `digits` digits."""
    if digits not in (1, 2):
        raise ValueError(f"digits={digits}: allowed are 1 and 2")
    numbers = range(10**digits)
    return [Sum(a, b) for a in numbers for b in numbers]


def split_sums(digits: int, validation: int, rng: random.Random) -> tuple[list[Sum], list[Sum]]:
    """Training and validation sums; `a+b` and `b+a` always fall on the same side."""
    total = len(all_sums(digits))
    if not 0 <= validation <= total // 2:
        raise ValueError(f"validation={validation}: allowed are 0 to {total // 2} of the {total} sums")
    unordered = [pair for pair in all_sums(digits) if pair.a <= pair.b]
    rng.shuffle(unordered)
    train: list[Sum] = []
    held_out: list[Sum] = []
    for a, b in unordered:
        both = sorted({Sum(a, b), Sum(b, a)})
        # Two sums do not fit into the last seat; a double (4+4) further on will, so the count comes out exact.
        side = held_out if len(held_out) + len(both) <= validation else train
        side.extend(both)
    rng.shuffle(train)
    rng.shuffle(held_out)
    return train, held_out


def repeated(sums: Sequence[Sum], rows: int, rng: random.Random) -> list[Sum]:
    """`rows` sums: the first pass in the given order, later passes shuffled anew."""
    chosen: list[Sum] = []
    while len(chosen) < rows:
        chosen.extend(sums if not chosen else rng.sample(sums, len(sums)))
    return chosen[:rows]


def to_row(item: Sum, digits: int, split: str, index: int) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": item.question}],
        "data_source": f"arithmetic/{digits}-digit",
        "reward_model": {"style": "rule", "ground_truth": item.answer},
        "extra_info": {"split": split, "index": index, "a": item.a, "b": item.b},
    }


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def generate(out: Path, *, digits: int, train: int, validation: int, seed: int) -> tuple[Path, Path]:
    """Writes both files into `out` and returns their paths."""
    if train < 1:
        raise ValueError(f"train={train}: allowed is 1 or more rows")
    rng = random.Random(seed)
    train_sums, validation_sums = split_sums(digits, validation, rng)
    files = {"train": repeated(train_sums, train, rng), "validation": validation_sums}
    out.mkdir(parents=True, exist_ok=True)
    for split, sums in files.items():
        write_rows(out / f"{split}.jsonl", (to_row(item, digits, split, i) for i, item in enumerate(sums)))
    return out / "train.jsonl", out / "validation.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the arithmetic example's data.")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and validation.jsonl")
    parser.add_argument("--digits", type=int, default=1, choices=(1, 2), help="longest number, in digits")
    parser.add_argument("--train", type=int, default=1024, help="training rows")
    parser.add_argument("--validation", type=int, default=20, help="validation rows, never trained on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        paths = generate(args.out, digits=args.digits, train=args.train, validation=args.validation, seed=args.seed)
    except ValueError as error:
        parser.error(str(error))
    for path in paths:
        print(path)


if __name__ == "__main__":
    main()
