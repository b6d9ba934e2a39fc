"""Types that Parquet knows and JSON does not."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from .shape import LEFT_OUT, ONE, TWO, VERL_EXTRA, VERL_ROW, Shape, parquet, several, user


def bad_text() -> Any:
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xff\xfe")]
    )


COLUMNS = [
    Shape(
        "veRL's Parquet",
        parquet(*((name, pa.array([value])) for name, value in VERL_ROW.items())),
        ("<|user|>1+1=<|assistant|>",),
        VERL_EXTRA,
        "2",
    ),
    Shape(
        "text dictionary-encoded, large, and as views",
        parquet(
            ("prompt", TWO.dictionary_encode()),
            ("x", TWO.cast(pa.large_string())),
            ("y", pa.array(["a", "b"], pa.string_view())),
        ),
        ("a", "b"),
        {"x": "a", "y": "a"},
    ),
    Shape(
        "messages in large lists",
        parquet(
            (
                "prompt",
                pa.array([user("a")]).cast(
                    pa.large_list(pa.struct([("role", pa.large_string()), ("content", pa.large_string())]))
                ),
            )
        ),
        ("<|user|>a<|assistant|>",),
    ),
    Shape(
        "text that Parquet calls binary",
        parquet(("prompt", pa.array([b"a"])), ("raw", pa.array([b"\xff"]))),
        ("a",),
        {"raw": None},
        notes=(LEFT_OUT.format("raw"),),
    ),
    Shape(
        "prompt in binary that is no text",
        parquet(("prompt", pa.array([b"\xff"]))),
        refused=r"a\.parquet: row 1: prompt=b'\\xff' cannot be kept: it is binary",
    ),
    Shape(
        "messages in binary",
        parquet(("prompt", pa.array([[{"role": b"user", "content": b"a"}]]))),
        ("<|user|>a<|assistant|>",),
    ),
    Shape(
        "invalid UTF-8 in a prompt",
        parquet(("prompt", bad_text())),
        refused=r"a\.parquet: row 2: prompt=\? cannot be kept: it cannot be read \(.*utf-8.* 0xff",
    ),
    Shape(
        "invalid UTF-8 elsewhere",
        parquet(("prompt", TWO), ("x", bad_text())),
        ("a", "b"),
        {"x": "a"},
        notes=(LEFT_OUT.format("x"),),
    ),
    Shape(
        "dates and times",
        parquet(
            ("prompt", ONE),
            ("at", pa.array([datetime(2024, 2, 29, 12, tzinfo=UTC)])),
            ("on", pa.array([date(2024, 2, 29)])),
            ("time", pa.array([time(1, 2, 3)])),
            ("took", pa.array([timedelta(seconds=90)])),
        ),
        ("a",),
        {"at": "2024-02-29T12:00:00+00:00", "on": "2024-02-29", "time": "01:02:03", "took": 90.0},
    ),
    Shape(
        "nanoseconds",
        parquet(
            ("prompt", ONE),
            ("at", pa.array([1], pa.timestamp("ns"))),
            ("time", pa.array([1], pa.time64("ns"))),
            ("took", pa.array([1], pa.duration("ns"))),
        ),
        ("a",),
        {"at": "1970-01-01T00:00:00.000000001", "time": "00:00:00.000000001", "took": 1e-9},
    ),
    Shape(
        "nanoseconds in extra_info",
        parquet(
            ("prompt", ONE),
            ("extra_info", pa.array([{"i": 7, "at": 1}], pa.struct([("i", pa.int64()), ("at", pa.timestamp("ns"))]))),
        ),
        ("a",),
        {"extra_info": {"i": 7, "at": "1970-01-01T00:00:00.000000001"}},
    ),
    Shape(
        "a year past 9999",
        parquet(("prompt", ONE), ("at", pa.array([10**12], pa.timestamp("s")))),
        ("a",),
        {"at": None},
        notes=(LEFT_OUT.format("at"),),
    ),
    Shape(
        "a time zone that nobody knows",
        parquet(("prompt", ONE), ("at", pa.array([1], pa.timestamp("us", "Mars/Base")))),
        ("a",),
        {"at": None},
        notes=(LEFT_OUT.format("at"),),
    ),
    Shape("decimals", parquet(("prompt", ONE), ("price", pa.array([Decimal("12.50")]))), ("a",), {"price": "12.50"}),
    Shape(
        "ground truth in decimals",
        parquet(("prompt", ONE), ("reward_model", pa.array([{"ground_truth": Decimal("0.10")}]))),
        ("a",),
        {},
        "0.10",
    ),
    Shape(
        "NaN, large integers and half floats",
        parquet(
            ("prompt", ONE),
            ("x", pa.array([float("nan")])),
            ("n", pa.array([2**64 - 1], pa.uint64())),
            ("h", pa.array([0.5], pa.float16())),
        ),
        ("a",),
        {"x": None, "n": 2**64 - 1, "h": 0.5},
        notes=(LEFT_OUT.format("x"),),
    ),
    Shape(
        "a map, a UUID, nothing at all",
        parquet(
            ("prompt", ONE),
            ("m", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))),
            ("u", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))),
            ("z", pa.nulls(1)),
        ),
        ("a",),
        {"m": {"k": 1}, "u": str(UUID(int=0)), "z": None},
    ),
    Shape(
        "embeddings",
        parquet(("prompt", ONE), ("e", pa.array([[0.5, 0.25]], pa.list_(pa.float32(), 2)))),
        ("a",),
        {"e": [0.5, 0.25]},
    ),
    Shape(
        "a column given twice",
        parquet(("prompt", ONE), ("x", ONE), ("x", ONE)),
        ("a",),
        {"x": None},
        notes=(LEFT_OUT.format("x"),),
    ),
    Shape(
        "prompt column given twice",
        parquet(("prompt", ONE), ("prompt", ONE)),
        refused=r"a\.parquet: row 1: prompt=\? cannot be kept: it is given twice",
    ),
    Shape(
        "columns of several files differ",
        several(
            parquet(("prompt", ONE), ("x", ONE), name="a.parquet"),
            parquet(("prompt", pa.array([user("b")])), name="b.parquet"),
        ),
        ("a", "<|user|>b<|assistant|>"),
        {"x": "a"},
    ),
]
