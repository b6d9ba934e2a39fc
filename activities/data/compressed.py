"""Lines of text files as they come: compressed or not, in UTF-8 or in what a byte order mark says."""

import codecs
import io
from collections.abc import Iterator
from pathlib import Path

from ...schemas.errors import DataError

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
"""How a compressed file begins, whatever its name."""
WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Longer marks first: one begins with another."""


def bare_suffix(file: Path) -> str:
    """`.jsonl` of `a.jsonl` and of `a.jsonl.gz`."""
    name = file.with_suffix("") if file.suffix.lower() in COMPRESSED else file
    return name.suffix.lower()


def read_lines(file: Path) -> Iterator[str]:
    """With their ends. Bytes that are not UTF-8 become unpaired surrogates: what they are part of decides whether they
    matter. Raises `DataError`."""
    number, wide = 0, None
    try:
        with _opened(file) as content:
            wide = _wide(content.peek(4))
            for line in _decoded(content) if wide is None else _recoded(content, wide):
                number += 1
                yield line
    except (OSError, EOFError) as error:
        raise DataError(f"{file}: cannot be read beyond line {number}: {error}") from error
    except UnicodeError as error:
        raise DataError(f"{file}:{number + 1}: not valid {wide}, as which the file begins") from error


def _wide(start: bytes) -> str | None:
    """Some write UTF-16 without a mark: no other text begins with a character and a NUL."""
    for mark, name in WIDE.items():
        if start.startswith(mark):
            return name
    match [byte == 0 for byte in start[:2]]:
        case [False, True]:
            return "utf-16-le"
        case [True, False]:
            return "utf-16-be"
    return None


def _opened(file: Path) -> io.BufferedReader:
    with file.open("rb") as plain:
        start = plain.read(4)
    kind = next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)
    if kind is None:
        return file.open("rb")
    import pyarrow

    return io.BufferedReader(pyarrow.input_stream(str(file), compression=kind))


def _decoded(content: io.BufferedReader) -> Iterator[str]:
    # Each by itself, and not the file as a whole: marks stand in the middle of files that were put together.
    return (line.decode("utf-8-sig", "surrogateescape") for line in content)


def _recoded(content: io.BufferedReader, encoding: str) -> Iterator[str]:
    with io.TextIOWrapper(content, encoding, newline="\n") as lines:
        yield from lines
