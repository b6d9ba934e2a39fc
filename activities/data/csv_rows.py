"""Rows of CSV and TSV files with a header. Every value is text: `007` stays what it is."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...schemas.errors import DataError
from ...schemas.text import shown
from .compressed import bare_suffix, read_lines
from .storable import MAX_TEXT, given_twice

OTHER_MARKS = re.compile(r"[;\t|,]")
"""What separates values in the files of others."""


def read_csv(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Location, by the last line of the row, and values."""
    csv.field_size_limit(MAX_TEXT)
    table = csv.reader(read_lines(file), delimiter="\t" if bare_suffix(file) == ".tsv" else ",", strict=True)
    try:
        header = next(table, [])
        twice = given_twice(header)
        if len(header) == 1 and OTHER_MARKS.search(header[0]):
            mark = "tabs" if bare_suffix(file) == ".tsv" else "commas, or by tabs in a .tsv"
            raise DataError(
                f"{file}:1: the header is one column, {shown(header[0])}; allowed: values separated by {mark}"
            )
        for values in table:
            if not values:
                continue
            location = f"{file}:{table.line_num}"
            if len(values) != len(header):
                raise DataError(f"{location}: {len(values)} values, but the header names {len(header)} columns")
            yield location, {**dict(zip(header, values, strict=True)), **twice}
    except csv.Error as error:
        if "new-line character" in str(error):
            raise DataError(f"{file}: its lines end in CR; allowed: LF, or CRLF") from error
        raise DataError(f"{file}:{table.line_num}: not valid CSV: {error}") from error
