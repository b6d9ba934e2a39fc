"""Writes the data of the calculator example: `train.jsonl` and `validation.jsonl`.

    python -m examples.calculator.generate --out DIR [--train N] [--validation N] [--seed S]

A row asks for one sum of two numbers of two digits, which is below 100:

    {"prompt": [{"role": "user", "content": "34+58="}], "data_source": "calculator",
     "reward_model": {"style": "rule", "ground_truth": "92"}}

Promises: the same arguments give the same bytes; no sum appears twice.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.arithmetic.generate import Sum

SMALLEST, BELOW = 10, 100


def all_sums() -> list[Sum]:
    """Of numbers of two digits, as long as the result has two digits as well."""
    numbers = range(SMALLEST, BELOW)
    return [Sum(a, b) for a in numbers for b in numbers if a + b < BELOW]


def to_row(item: Sum) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": item.question}],
        "data_source": "calculator",
        "reward_model": {"style": "rule", "ground_truth": item.answer},
    }


def generate(out: Path, *, train: int, validation: int, seed: int) -> tuple[Path, Path]:
    """Writes both files into `out` and returns their paths."""
    sums = all_sums()
    if min(train, validation) < 1 or train + validation > len(sums):
        raise ValueError(f"train={train} and validation={validation}: allowed are 1 or more, together {len(sums)}")
    chosen = random.Random(seed).sample(sums, train + validation)
    out.mkdir(parents=True, exist_ok=True)
    files = {"train": chosen[:train], "validation": chosen[train:]}
    for split, rows in files.items():
        text = "".join(json.dumps(to_row(item)) + "\n" for item in rows)
        (out / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return out / "train.jsonl", out / "validation.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the calculator example's data.")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and validation.jsonl")
    parser.add_argument("--train", type=int, default=2048, help="training rows")
    parser.add_argument("--validation", type=int, default=32, help="validation rows, never trained on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        paths = generate(args.out, train=args.train, validation=args.validation, seed=args.seed)
    except ValueError as error:
        parser.error(str(error))
    for path in paths:
        print(path)


if __name__ == "__main__":
    main()
