"""A shape of data: what is in the files of somebody, and what a run makes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

Values = dict[str, Any]
Write = Callable[[Path], Path]
"""Writes into an empty folder; returns what `data.train_files` names."""


class Shape(NamedTuple):
    name: str
    write: Write
    prompts: tuple[str, ...] = ()
    """Rendered, in order; none of what is refused."""
    extra: Values = {}
    """What a reward sees of the first row beside the ground truth."""
    ground_truth: Any = None
    notes: tuple[str, ...] = ()
    """Beginnings of the lines that people are told."""
    refused: str = ""
    """What the refusal must say, as a regular expression."""
    data: Values = {}
    """Keys of the configuration's section."""


def content(name: str, data: bytes | str) -> Write:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return folder / name

    return write


def jsonl(*rows: Values) -> Write:
    return content("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def parquet(*columns: tuple[str, Any], name: str = "a.parquet") -> Write:
    """Arrays by column name; one name may come twice."""

    def write(folder: Path) -> Path:
        table = pa.Table.from_arrays([array for _, array in columns], names=[column for column, _ in columns])
        pq.write_table(table, folder / name)
        return folder / name

    return write


def several(*writers: Write, entry: str = "") -> Write:
    def write(folder: Path) -> Path:
        for one in writers:
            one(folder)
        return folder / entry if entry else folder

    return write


def user(text: str) -> list[Values]:
    return [{"role": "user", "content": text}]


ONE = pa.array(["a"])
TWO = pa.array(["a", "b"])
VERL_ROW = {
    "data_source": "openai/gsm8k",
    "prompt": user("1+1="),
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0, "answer": "#### 2", "question": "1+1="},
}
VERL_EXTRA = {"ability": "math", "reward_model": {"style": "rule"}, "extra_info": VERL_ROW["extra_info"]}
LEFT_OUT = "column {!r} holds what cannot be kept: rewards see null in its place"
