"""Rows of CSV and TSV files with a header. Every value is text: `007` stays what it is."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...schemas.errors import DataError
from .compressed import bare_suffix, read_lines
from .storable import MAX_TEXT, given_twice


def read_csv(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location, by the last line of the row, and values."""
    csv.field_size_limit(MAX_TEXT)
    table = csv.reader(read_lines(file), delimiter="\t" if bare_suffix(file) == ".tsv" else ",", strict=True)
    try:
        header = next(table, [])
        twice = given_twice(header)
        for values in table:
            if not values:
                continue
            location = f"{file}:{table.line_num}"
            if len(values) != len(header):
                raise DataError(f"{location}: {len(values)} values, but the header names {len(header)} columns")
            yield location, {**dict(zip(header, values, strict=True)), **twice}
    except csv.Error as error:
        raise DataError(f"{file}:{table.line_num}: not valid CSV: {error}") from error
