"""Files as they come: kinds, encodings, compression, folders, and what is broken."""

import bz2
import codecs
import gzip
import json
import os
from pathlib import Path

import pyarrow as pa

from .shape import ONE, TWO, Shape, content, jsonl, parquet, several


def arrow_stream(folder: Path) -> Path:
    """As `datasets.save_to_disk` leaves it."""
    table = pa.table({"prompt": ["a", "b"]})
    for number in range(2):
        with pa.ipc.new_stream(folder / f"data-0000{number}-of-00002.arrow", table.schema) as sink:
            sink.write_table(table.slice(number, 1))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text('{"_data_files": []}')
    return folder


def arrow_file(folder: Path) -> Path:
    with pa.ipc.new_file(folder / "a.arrow", pa.schema([("prompt", pa.string())])) as sink:
        sink.write_table(pa.table({"prompt": ["a"]}))
    return folder / "a.arrow"


def named_pipe(folder: Path) -> Path:
    """Who opens it waits for ever."""
    os.mkfifo(folder / "a.jsonl")
    return folder / "a.jsonl"


def dangling(folder: Path) -> Path:
    (folder / "a.jsonl").symlink_to("nowhere.jsonl")
    return folder / "a.jsonl"


LINE = '{"prompt": "a"}'
FILES = [
    Shape("JSONL", jsonl({"prompt": "a"}, {"prompt": "b"}), ("a", "b")),
    Shape("JSONL with a byte order mark", content("a.jsonl", codecs.BOM_UTF8 + LINE.encode()), ("a",)),
    Shape("JSONL with CRLF", content("a.jsonl", f"{LINE}\r\n\r\n{LINE}\r\n"), ("a", "a")),
    Shape("JSONL put together from files with marks", content("a.jsonl", f"{LINE}\n\ufeff{LINE}\n"), ("a", "a")),
    Shape("JSONL without a last newline", content("a.jsonl", LINE), ("a",)),
    Shape("JSONL in UTF-16", content("a.jsonl", f"{LINE}\n{LINE}\n".encode("utf-16")), ("a", "a")),
    Shape("JSONL in UTF-16, big-endian", content("a.jsonl", codecs.BOM_UTF16_BE + LINE.encode("utf-16-be")), ("a",)),
    Shape(
        "JSONL in UTF-16, cut short",
        content("a.jsonl", LINE.encode("utf-16")[:-1]),
        refused=r"a\.jsonl:1: not valid utf-16",
    ),
    Shape("JSONL.GZ", content("a.jsonl.gz", gzip.compress(LINE.encode())), ("a",)),
    Shape("JSONL.GZ of two parts", content("a.jsonl.gz", 2 * gzip.compress(f"{LINE}\n".encode())), ("a", "a")),
    Shape(
        "JSONL.GZ, cut short",
        content("a.jsonl.gz", gzip.compress(LINE.encode())[:-9]),
        refused=r"a\.jsonl\.gz: cannot be read beyond line \d",
    ),
    Shape("gzip that is not called so", content("a.jsonl", gzip.compress(LINE.encode())), ("a",)),
    Shape("JSONL.BZ2", content("a.jsonl.bz2", bz2.compress(LINE.encode())), ("a",)),
    Shape("JSONL.ZST", content("a.jsonl.zst", pa.compress(LINE.encode(), "zstd", asbytes=True)), ("a",)),
    Shape("upper-case suffix", content("A.JSONL", LINE), ("a",)),
    Shape("JSON that is JSONL", content("a.json", f"{LINE}\n{LINE}\n"), ("a", "a")),
    Shape("JSON list", content("a.json", f"[{LINE}, {LINE}]"), ("a", "a")),
    Shape("JSON list, pretty-printed", content("a.json", json.dumps([{"prompt": "a"}], indent=2)), ("a",)),
    Shape("JSON list in a JSONL file", content("a.jsonl", f"\n[{LINE}]\n"), ("a",)),
    Shape(
        "JSON object with one list",
        content("a.json", json.dumps({"version": 1, "data": [{"prompt": "a"}]}, indent=1)),
        ("a",),
    ),
    Shape(
        "JSON object with one list, in one line",
        content("a.json", json.dumps({"version": 1, "data": [{"prompt": "a"}, {"prompt": "b"}]})),
        ("a", "b"),
    ),
    Shape(
        "JSON object with one list, its first line not only a brace",
        content("a.json", f'{{"data": [\n{LINE},\n{LINE}\n]}}\n'),
        ("a", "a"),
    ),
    Shape(
        "JSON rows over several lines each",
        content("a.jsonl", 2 * (json.dumps({"prompt": "a"}, indent=1) + "\n")),
        ("a", "a"),
    ),
    Shape(
        "JSONL of one row with tools",
        jsonl({"prompt": "a", "tools": [{"name": "f"}]}),
        ("a",),
        {"tools": [{"name": "f"}]},
    ),
    Shape(
        "JSON of one conversation",
        content("a.json", json.dumps({"messages": [{"role": "user", "content": "a"}]}, indent=1)),
        refused=r"a\.json: one JSON object with the keys messages; allowed: a list of rows",
    ),
    Shape(
        "JSONL with a comma after each row",
        content("a.jsonl", f"{LINE},\n{LINE}\n"),
        refused=r"a\.jsonl:1: not valid JSON: .* at column 16",
    ),
    Shape("JSONL whose lines end in CR", content("a.jsonl", f"{LINE}\r{LINE}\r"), ("a", "a")),
    Shape("JSONL in UTF-16 without a mark", content("a.jsonl", f"{LINE}\n{LINE}\n".encode("utf-16-le")), ("a", "a")),
    Shape("CSV in UTF-16 without a mark, big-endian", content("a.csv", "prompt\na\n".encode("utf-16-be")), ("a",)),
    Shape(
        "JSON object of columns",
        content("a.json", json.dumps({"prompt": {"0": "a"}}, indent=1)),
        refused=r"a\.json: one JSON object with the keys prompt; allowed: a list of rows",
    ),
    Shape(
        "JSON list with a trailing comma",
        content("a.json", f"[{LINE},\n]"),
        refused=r"a\.json: not valid JSON: .* at line 2 column 1",
    ),
    Shape(
        "JSON lines after a list",
        content("a.json", f"[{LINE}]\n{LINE}"),
        refused=r"a\.json: not valid JSON: Extra data at line 2",
    ),
    Shape(
        "JSON list of texts",
        content("a.json", '["a"]'),
        refused=r"a\.json: row 1: a row must be a JSON object, not str",
    ),
    Shape(
        "JSONL with a list among the rows",
        content("a.jsonl", f"{LINE}\n[1]\n"),
        refused=r"a\.jsonl:2: a row must be a JSON object, not list",
    ),
    Shape(
        "JSONL, cut short",
        content("a.jsonl", f'{LINE}\n{{"prompt": "b'),
        refused=r"a\.jsonl:2: not valid JSON: Unterminated string .* at column 12",
    ),
    Shape(
        "JSONL with Python's quotes",
        content("a.jsonl", f"{LINE}\n{{'prompt': 'a'}}\n"),
        refused=r"a\.jsonl:2: not valid JSON: .* at column 2",
    ),
    Shape(
        "JSONL, nested 100,000 deep",
        content("a.jsonl", f'{LINE}\n{{"x": {100_000 * "["}'),
        refused=r"a\.jsonl:2: nested too deeply",
    ),
    Shape("one line of a megabyte", jsonl({"prompt": "a", "raw": "x" * 2**20}), ("a",)),
    Shape(
        "Git LFS's pointer",
        content("a.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        refused=r"data\.train_files: /.*a\.parquet is Git LFS's pointer to the data; `git lfs pull`",
    ),
    Shape("empty file", content("a.jsonl", b""), refused=r"data\.train_files: .*a\.jsonl is empty"),
    Shape("blank file", content("a.jsonl", b"\n \n"), refused=r"no usable prompt in .*a\.jsonl: 0 rows"),
    Shape("empty JSON list", content("a.json", b"[]"), refused="no usable prompt in .*: 0 rows"),
    Shape(
        "Parquet without a row",
        parquet(("prompt", pa.array([], pa.string()))),
        refused="no usable prompt in .*: 0 rows",
    ),
    Shape("Parquet that is none", content("a.parquet", b"PAR1"), refused=r"a\.parquet: not a readable Parquet file"),
    Shape(
        "Parquet of several files, by pattern",
        several(
            parquet(("prompt", ONE), name="train-00000-of-00002.parquet"),
            parquet(("prompt", TWO), name="train-00001-of-00002.parquet"),
            parquet(("prompt", TWO), name="test-00000-of-00001.parquet"),
            entry="train-*.parquet",
        ),
        ("a", "a", "b"),
    ),
    Shape(
        "pattern that matches nothing",
        several(jsonl({"prompt": "a"}), entry="*.parquet"),
        refused=r"data\.train_files: no file that is not empty matches .*\*\.parquet",
    ),
    Shape("file whose name looks like a pattern", content("a[1].jsonl", LINE), ("a",)),
    Shape(
        "Spark's folder",
        several(
            content("_SUCCESS", b""),
            content(".part-0.crc", b"x"),
            content("part-00000.jsonl", LINE),
            content("part-00001.jsonl", b""),
        ),
        ("a",),
    ),
    Shape("folder of Arrow files from save_to_disk", arrow_stream, ("a", "b")),
    Shape("Arrow file", arrow_file, ("a",)),
    Shape("Arrow file that is none", content("a.arrow", b"no arrow"), refused=r"a\.arrow: not a readable Arrow file"),
    Shape(
        "folder with two splits",
        several(parquet(("prompt", ONE), name="train-0.parquet"), parquet(("prompt", ONE), name="test-0.parquet")),
        refused=r"holds files of several splits: test, train; name one, for example data\.train_files=.*/test\*",
    ),
    Shape(
        "folder with two splits, named at the end",
        several(
            jsonl({"prompt": "a"}),
            parquet(("prompt", ONE), name="gsm8k_train.parquet"),
            content("GSM8K-Test.csv", "prompt\na\n"),
        ),
        refused=r"holds files of several splits: test, train; name one, for example data\.train_files=.*/GSM8K-Test\*",
    ),
    Shape(
        "folder of one split beside other files",
        several(content("latest.jsonl", LINE), content("train-0.jsonl", LINE)),
        ("a", "a"),
    ),
    Shape(
        "folder without data",
        several(content("README.md", "x")),
        refused=r"data\.train_files: .* holds no data file; allowed: \.jsonl",
    ),
    Shape(
        "file that is not there",
        lambda folder: folder / "none.jsonl",
        refused=r"data\.train_files: /.*none\.jsonl does not exist",
    ),
    Shape(
        "link that leads nowhere",
        dangling,
        refused=r"data\.train_files: /.*a\.jsonl is a link to nowhere\.jsonl, which",
    ),
    Shape(
        "home of nobody", lambda folder: Path("~nobody of this name/a.jsonl"), refused="cannot be looked up: Could not"
    ),
    Shape(
        "name of the Hub", lambda folder: Path("someone/data"), refused="does not exist; allowed: .*downloaded first"
    ),
    Shape("address of a bucket", lambda folder: Path("s3://bucket/a.jsonl"), refused=r"data\.train_files"),
    Shape(
        "suffix of a spreadsheet",
        content("a.xlsx", b"PK"),
        refused=r"unknown suffix '\.xlsx'; allowed: \.jsonl, .*\.parquet",
    ),
    Shape(
        "CSV",
        content("a.csv", 'prompt,answer\r\n"a, b",007\r\n\r\n"c ""d"" e",\r\n'),
        ("a, b", 'c "d" e'),
        {"answer": "007"},
    ),
    Shape("CSV with lines in a value", content("a.csv", 'prompt,answer\n"a\nb",1\n'), ("a\nb",), {"answer": "1"}),
    Shape("TSV", content("a.tsv", "prompt\tn\na\t1\n"), ("a",), {"n": "1"}),
    Shape(
        "CSV with semicolons",
        content("a.csv", "prompt;answer\na;1\n"),
        refused=r"a\.csv:1: the header is one column, 'prompt;answer'; allowed: values separated by commas",
    ),
    Shape(
        "TSV with commas",
        content("a.tsv", "prompt,answer\na,1\n"),
        refused=r"a\.tsv:1: the header is one column, 'prompt,answer'; allowed: values separated by tabs",
    ),
    Shape(
        "CSV whose lines end in CR",
        content("a.csv", "prompt,n\ra,1\r"),
        refused=r"a\.csv: its lines end in CR; allowed: LF",
    ),
    Shape(
        "CSV with a value too many",
        content("a.csv", "prompt,n\na,1\nb,2,3\n"),
        refused=r"a\.csv:3: 3 values, but the header names 2 columns",
    ),
    Shape(
        "CSV with an open quote",
        content("a.csv", 'prompt\n"a\n'),
        refused=r"a\.csv:\d: not valid CSV: unexpected end of data",
    ),
    Shape(
        "name that is too long",
        lambda folder: folder / ("x" * 5000),
        refused=r"data\.train_files: .* cannot be looked up",
    ),
    Shape(
        "pattern that is none",
        lambda folder: folder / "**.jsonl",
        refused=r"data\.train_files: .* cannot be looked up: Inval",
    ),
    Shape("named pipe", named_pipe, refused=r"data\.train_files: /.*a\.jsonl is neither a file nor a folder"),
]
