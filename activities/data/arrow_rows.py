"""Rows of Parquet files, and of the Arrow files in which the `datasets` library keeps its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from ...schemas.errors import DataError, one_line
from .storable import Unreadable, given_twice

BATCH_ROWS = 1024
FAULTS = (pa.ArrowException, ValueError, OverflowError, LookupError)
"""What a value raises that Python has no like of: a moment to the nanosecond or past the year 9999, bad text."""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def read_parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location and values, a batch of rows in memory at a time."""
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            yield from _numbered(file, table.iter_batches(batch_size=BATCH_ROWS))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Parquet file: {one_line(error)}") from error


def read_arrow(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with pa.memory_map(str(file)) as content:
            yield from _numbered(file, _batches(content))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Arrow file: {one_line(error)}") from error


def _batches(content: Any) -> Iterator[Any]:
    """There are two formats, and both are called `.arrow`."""
    try:
        table = pa.ipc.open_file(content)
    except pa.ArrowInvalid:
        content.seek(0)
        yield from pa.ipc.open_stream(content)
    else:
        yield from (table.get_batch(number) for number in range(table.num_record_batches))


def _numbered(file: Path, batches: Iterator[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for batch in batches:
        names = batch.schema.names
        twice = given_twice(names)
        for values in zip(*(_column(column) for column in batch.columns), strict=True):
            number += 1
            yield f"{file}: row {number}", {**dict(zip(names, values, strict=True)), **twice}


def _column(column: Any) -> list[Any]:
    if not _taken_apart(column.type):
        try:
            return list(column.to_pylist())
        except FAULTS:
            pass  # not all of its values are at fault, nor all parts of one
    return [_value(scalar) for scalar in column]


def _taken_apart(kind: Any) -> bool:
    """Left to Arrow, maps become lists of pairs, and what nanoseconds become depends on whether pandas is installed."""
    if pa.types.is_map(kind) or _in_nanoseconds(kind):
        return True
    return any(_taken_apart(kind.field(number).type) for number in range(kind.num_fields))


def _in_nanoseconds(kind: Any) -> bool:
    return pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns"


def _value(scalar: Any) -> Any:
    """Part by part, so that only what cannot be read is `Unreadable`."""
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pa.types.is_map(kind):
        # A map's items are structs of two fields.
        return {str(_value(item["key"])): _value(item["value"]) for item in _items(scalar)}
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        return {name: _value(scalar[number]) for number, name in enumerate(names)} | given_twice(names)
    if hasattr(scalar, "values"):
        return [_value(item) for item in _items(scalar)]
    return _leaf(scalar)


def _items(scalar: Any) -> list[Any]:
    return list(scalar.values)


def _leaf(scalar: Any) -> Any:
    try:
        return _in_microseconds(scalar).as_py()
    except FAULTS as error:
        if pa.types.is_duration(scalar.type):
            return scalar.value / PER_SECOND[scalar.type.unit]
        text = _moment(scalar) if pa.types.is_temporal(scalar.type) else ""
        return text or Unreadable(f"cannot be read ({one_line(error)})")


def _in_microseconds(scalar: Any) -> Any:
    """Python's own types hold no less. Raises one of `FAULTS` when something would be lost."""
    kind = scalar.type
    if not _in_nanoseconds(kind):
        return scalar
    if pa.types.is_timestamp(kind):
        return scalar.cast(pa.timestamp("us", kind.tz))
    return scalar.cast(pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us"))


def _moment(scalar: Any) -> str:
    """Arrow writes what Python's own types cannot hold; empty where it cannot either."""
    try:
        text = str(scalar.cast(pa.string()))
    except FAULTS:
        return ""
    return "" if text.startswith("<") else text.replace(" ", "T", 1)
