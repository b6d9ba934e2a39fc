"""Writes word problems in the form of GSM8K as veRL's preprocessing leaves it: `train.parquet` and `test.parquet`.

    python -m examples.gsm8k.generate --out DIR [--train N] [--test N] [--seed S]

Whoever has the real files needs none of this: columns and types are the same. Problems are made up, so that nothing is
fetched; each takes a multiplication and an addition.

Promises: the same arguments give the same bytes; no question stands in both files, and none twice.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
TEXT = pa.string()
SCHEMA = pa.schema(
    [
        ("data_source", TEXT),
        ("prompt", pa.list_(pa.struct([("role", TEXT), ("content", TEXT)]))),
        ("ability", TEXT),
        ("reward_model", pa.struct([("style", TEXT), ("ground_truth", TEXT)])),
        ("extra_info", pa.struct([("split", TEXT), ("index", pa.int64()), ("answer", TEXT), ("question", TEXT)])),
    ]
)
VALUE = {"dtype": "string", "_type": "Value"}
FEATURES = {
    "data_source": VALUE,
    "prompt": [{"role": VALUE, "content": VALUE}],
    "ability": VALUE,
    "reward_model": {"style": VALUE, "ground_truth": VALUE},
    "extra_info": {
        **{"split": VALUE, "index": {"dtype": "int64", "_type": "Value"}},
        **{"answer": VALUE, "question": VALUE},
    },
}
"""What the `datasets` library writes beside the columns, for itself."""

NAMES = ("Ada", "Ben", "Chloe", "Dmitri", "Esi", "Farid", "Grace", "Hiro")
NUMBERS = range(2, 13)
STORIES = (
    (
        "{who} has {a} marbles and wins {b} more every day for {c} days. How many marbles does {who} have then?",
        "{who} wins {b} * {c} = <<{b}*{c}={bc}>>{bc} marbles.\nTogether that is {a} + {bc} = <<{a}+{bc}={sum}>>{sum}.",
    ),
    (
        "A box holds {b} pencils. {who} buys {c} boxes and already has {a} pencils. How many pencils does {who} have?",
        "The boxes hold {b} * {c} = <<{b}*{c}={bc}>>{bc} pencils.\n{who} has {a} + {bc} = <<{a}+{bc}={sum}>>{sum}.",
    ),
    (
        "{who} reads {b} pages a day for {c} days, and {a} pages on the last day. How many pages does {who} read?",
        "First {who} reads {b} * {c} = <<{b}*{c}={bc}>>{bc} pages.\nThen {bc} + {a} = <<{bc}+{a}={sum}>>{sum} pages.",
    ),
)


class Problem(NamedTuple):
    question: str
    answer: str
    """The steps, with the sums in double brackets, and the result after four number signs: as in the original."""

    @property
    def result(self) -> str:
        return self.answer.rpartition("#### ")[2]


def problems() -> list[Problem]:
    return [_problem(*parts) for parts in product(STORIES, NAMES, NUMBERS, NUMBERS, NUMBERS)]


def _problem(story: tuple[str, str], who: str, a: int, b: int, c: int) -> Problem:
    values = {"who": who, "a": a, "b": b, "c": c, "bc": b * c, "sum": a + b * c}
    question, steps = (text.format(**values) for text in story)
    return Problem(question, f"{steps}\n#### {values['sum']}")


def to_row(problem: Problem, split: str, index: int) -> dict[str, object]:
    """In the order of veRL's columns."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{problem.question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.result},
        "extra_info": {"split": split, "index": index, "answer": problem.answer, "question": problem.question},
    }


def generate(out: Path, *, train: int, test: int, seed: int) -> tuple[Path, Path]:
    """Writes both files into `out` and returns their paths."""
    made = problems()
    if train < 1 or test < 1 or train + test > len(made):
        raise ValueError(f"train={train}, test={test}: allowed are 1 or more rows each, {len(made)} together")
    random.Random(seed).shuffle(made)
    out.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.with_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    for split, chosen in (("train", made[:train]), ("test", made[train : train + test])):
        rows = [to_row(problem, split, index) for index, problem in enumerate(chosen)]
        pq.write_table(pa.Table.from_pylist(rows, schema), out / f"{split}.parquet")
    return out / "train.parquet", out / "test.parquet"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write word problems as veRL's preprocessing of GSM8K writes them.")
    parser.add_argument("--out", type=Path, required=True, help="folder for train.parquet and test.parquet")
    parser.add_argument("--train", type=int, default=1024, help="training rows")
    parser.add_argument("--test", type=int, default=64, help="test rows, never trained on")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        paths = generate(args.out, train=args.train, test=args.test, seed=args.seed)
    except ValueError as error:
        parser.error(str(error))
    for path in paths:
        print(path)


if __name__ == "__main__":
    main()
