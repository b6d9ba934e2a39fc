"""Reading data files: every fault names its file and line."""

import json
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from psrl.activities.data.rows import read_rows
from psrl.schemas.errors import DataError


def read(file: Path) -> list[dict[str, object]]:
    return [row.values for row in read_rows(file, "data.train_files")]


def test_jsonl_rows_come_with_their_place_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n\n{"prompt": "\xc3\xa4"}')
    rows = list(read_rows(file, "data.train_files"))
    assert [row.values["prompt"] for row in rows] == ["a", "ä"]
    assert rows[1].location == f"{file}:3"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"prompt": "a"}\n{"prompt": \n', r"b\.jsonl:2: not valid JSON: Expecting value at column"),
        (b'{"prompt": "a"}\n[1]\n', r"b\.jsonl:2: a row must be a JSON object, not list"),
        (b"", r"data\.train_files: .*b\.jsonl is empty"),
    ],
)
def test_a_broken_jsonl_file_is_refused_with_file_line_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "b.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read(file)


def test_a_missing_file_is_refused_with_its_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"data\.train_files: {tmp_path}/none\.jsonl does not exist"):
        read(tmp_path / "none.jsonl")


def test_an_unknown_suffix_is_refused_with_the_allowed_ones(tmp_path: Path) -> None:
    (tmp_path / "a.xls").write_text("x")
    with pytest.raises(DataError, match=r"'\.xls'; allowed: \.jsonl, \.ndjson, \.json, \.parquet"):
        read(tmp_path / "a.xls")


@pytest.mark.parametrize(
    "row", ['{"question": "q", "tests": [{"input": "1", "output": "2"}]}', '{"question": "q", "tags": []}']
)
def test_a_single_line_of_jsonl_is_a_row_whatever_lists_it_has(tmp_path: Path, row: str) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(f"{row}\n")
    assert read(file) == [json.loads(row)]


def test_parquet_rows_keep_nested_columns(tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{n}"}], "day": date(2020, 1, 1)} for n in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == rows


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("not parquet")
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        read(tmp_path / "a.parquet")
