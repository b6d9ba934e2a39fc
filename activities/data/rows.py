"""Rows of the data files, one at a time, by the kind of file.

Promises: a row comes with its location (`file:line` or `file: row n`), every fault is a `DataError` that names it, and
a value that cannot be read is marked in its row instead of ending the run: nobody may want it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...schemas.errors import DataError
from ..weights.folder import LFS_POINTER
from .compressed import bare_suffix


class Row(NamedTuple):
    location: str
    values: dict[str, Any]
    columnar: bool = False
    """Every object has every field of its column: null also stands for a field that is not there."""


def read_rows(file: Path, key: str) -> Iterator[Row]:
    """Every row of `file`; `key` is the configuration key that names it."""
    if not file.is_file():
        raise DataError(f"{key}: {file.absolute()} does not exist or is not a file")
    if file.stat().st_size == 0:
        raise DataError(f"{key}: {file.absolute()} is empty")
    if _start(file, key) == LFS_POINTER:
        raise DataError(f"{key}: {file.absolute()} is Git LFS's pointer to the data; `git lfs pull` fetches them")
    suffix = bare_suffix(file)
    if suffix not in READERS:
        raise DataError(f"{key}: {file} has the unknown suffix {suffix!r}; allowed: {SUFFIXES}")
    return READERS[suffix](file)


def _start(file: Path, key: str) -> bytes:
    try:
        with file.open("rb") as content:
            return content.read(len(LFS_POINTER))
    except OSError as error:
        raise DataError(f"{key}: {file.absolute()} cannot be read: {error.strerror}") from error


def _json(file: Path) -> Iterator[Row]:
    from .json_rows import read_json

    return (Row(location, values) for location, values in read_json(file))


def _csv(file: Path) -> Iterator[Row]:
    from .csv_rows import read_csv

    return (Row(location, values) for location, values in read_csv(file))


def _parquet(file: Path) -> Iterator[Row]:
    from .arrow_rows import read_parquet

    return (Row(location, values, columnar=True) for location, values in read_parquet(file))


def _arrow(file: Path) -> Iterator[Row]:
    from .arrow_rows import read_arrow

    return (Row(location, values, columnar=True) for location, values in read_arrow(file))


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json,
    ".ndjson": _json,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".csv": _csv,
    ".tsv": _csv,
}
SUFFIXES = f"{', '.join(READERS)}, and text compressed as .gz, .bz2 or .zst"
"""For people."""
