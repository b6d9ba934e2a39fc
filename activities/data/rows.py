"""Rows of the data files, one at a time: JSONL and Parquet.

Promises: a row comes with its location (`file:line` or `file:row`), every fault is a `DataError` that names it, and no
file is held in memory whole.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...schemas.errors import DataError

JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)
PARQUET_BATCH_ROWS = 1024


class Row(NamedTuple):
    location: str
    values: dict[str, Any]


def read_rows(file: Path, key: str) -> Iterator[Row]:
    """Every row of `file`; `key` is the configuration key that names it."""
    if not file.is_file():
        raise DataError(f"{key}: {file.absolute()} does not exist or is not a file")
    if file.stat().st_size == 0:
        raise DataError(f"{key}: {file.absolute()} is empty")
    if file.suffix in JSONL_SUFFIXES:
        return _read_jsonl(file)
    if file.suffix in PARQUET_SUFFIXES:
        return _read_parquet(file)
    allowed = ", ".join(JSONL_SUFFIXES + PARQUET_SUFFIXES)
    raise DataError(f"{key}: {file} has the unknown suffix {file.suffix!r}; allowed: {allowed}")


def _read_jsonl(file: Path) -> Iterator[Row]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                location = f"{file}:{number}"
                yield Row(location, _parse_line(location, line))


def _parse_line(location: str, line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(f"{location}: not valid JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{location}: not valid UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise DataError(f"{location}: nested too deeply") from error
    if not isinstance(values, dict):
        raise DataError(f"{location}: a row must be a JSON object, not {type(values).__name__}")
    return values


def _read_parquet(file: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{file}: row {number}", values)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Parquet file: {error}") from error
