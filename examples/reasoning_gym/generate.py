"""Writes the data of the reasoning-gym example: `train.jsonl` and `validation.jsonl`.

    python -m examples.reasoning_gym.generate --out DIR [--train N] [--validation N] [--seed S]

A row asks for one sum or difference of two numbers of one or two digits (the library's `chain_sum`), after one worked
demonstration: without it this small model chats about the problem instead of solving it.

    {"prompt": [{"role": "user", ...}, {"role": "assistant", ...}, {"role": "user", "content": "... 58 + 26 ="}],
     "data_source": "reasoning_gym/chain_sum", "reward_model": {"style": "rule", "ground_truth": "84"},
     "extra_info": {"split": "train", "index": 0, "entry": {the library's own entry, which its scorer wants back}}}

Promises: the same arguments give the same bytes; no validation problem appears in the training file, not even with the
numbers of a sum swapped, and the demonstration in neither; validation rows are all different.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

TASK = "chain_sum"
LEVEL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
LARGEST_VALIDATION = 1024
DRAWN_PER_ROW = 8  # half of the draws have one digit, and of those there are few

DEMONSTRATED = "4 + 3"
DEMONSTRATION = [
    {"role": "user", "content": f"State the final answer to the following arithmetic problem: {DEMONSTRATED} ="},
    {"role": "assistant", "content": f"{DEMONSTRATED} = 7"},
]


def problem_key(expression: str) -> str:
    """Equal for problems that are one and the same: `2 + 9` and `9 + 2`, but not `2 - 9` and `9 - 2`."""
    parts = expression.split()
    numbers, operators = parts[::2], parts[1::2]
    return " + ".join(sorted(numbers, key=int)) if set(operators) == {"+"} else expression


def entries(seed: int, size: int) -> Iterator[dict[str, Any]]:
    """The library's entries. It fixes entry i by seed + i, so near seeds share most of theirs: seeds are spread."""
    import reasoning_gym

    yield from reasoning_gym.create_dataset(TASK, seed=seed * 1_000_003, size=size, **LEVEL)


def split_entries(
    drawn: Iterable[dict[str, Any]], train: int, validation: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The first different problems are held out; the problems drawn after them, less those, are trained on."""
    held_out: dict[str, dict[str, Any]] = {}
    kept: list[dict[str, Any]] = []
    for entry in drawn:
        key = problem_key(entry["metadata"]["expression"])
        if key == problem_key(DEMONSTRATED):
            continue
        if len(held_out) < validation:
            held_out.setdefault(key, entry)
        elif key not in held_out:
            kept.append(entry)
        if len(kept) == train:
            return kept, list(held_out.values())
    raise ValueError(f"train={train}, validation={validation}: only {len(held_out)} + {len(kept)} problems were drawn")


def to_row(entry: dict[str, Any], split: str, index: int) -> dict[str, Any]:
    return {
        "prompt": [*DEMONSTRATION, {"role": "user", "content": entry["question"]}],
        "data_source": f"reasoning_gym/{TASK}",
        "reward_model": {"style": "rule", "ground_truth": entry["answer"]},
        "extra_info": {"split": split, "index": index, "entry": entry},
    }


def generate(out: Path, *, train: int, validation: int, seed: int) -> tuple[Path, Path]:
    """Writes both files into `out` and returns their paths."""
    if train < 1:
        raise ValueError(f"train={train}: allowed is 1 or more rows")
    if not 1 <= validation <= LARGEST_VALIDATION:
        raise ValueError(f"validation={validation}: allowed are 1 to {LARGEST_VALIDATION}")
    drawn = entries(seed, DRAWN_PER_ROW * (train + validation))
    splits = dict(zip(("train", "validation"), split_entries(drawn, train, validation), strict=True))
    out.mkdir(parents=True, exist_ok=True)
    for split, chosen in splits.items():
        lines = (json.dumps(to_row(entry, split, index)) + "\n" for index, entry in enumerate(chosen))
        (out / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return out / "train.jsonl", out / "validation.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the reasoning-gym example's data.")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.jsonl and validation.jsonl")
    parser.add_argument("--train", type=int, default=1024, help="training rows")
    parser.add_argument("--validation", type=int, default=64, help="validation rows, never trained on")
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
