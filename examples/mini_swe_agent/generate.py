"""Writes the tasks of the coding example: one per function that is wrong, as often as wanted.

python -m examples.mini_swe_agent.generate --out DIR [--rows 24]
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FUNCTIONS = ("count_words", "longest_word", "shout")
QUESTION = "In wordcount.py, {function} is wrong. Repair it."


def generate(folder: Path, rows: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in itertools.islice(tasks(), rows)))
    return file


def tasks() -> Iterator[dict[str, Any]]:
    for function in itertools.cycle(FUNCTIONS):
        yield {
            "prompt": [{"role": "user", "content": QUESTION.format(function=function)}],
            "data_source": "wordcount",
            "test": f"test_{function}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=24)
    arguments = parser.parse_args()
    print(generate(arguments.out, arguments.rows))


if __name__ == "__main__":
    main()
