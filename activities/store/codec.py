"""Token ids and log-probs as compact binary: little-endian int32 and float32, no header, length implied."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)

_SWAP = sys.byteorder == "big"


def encode_ids(ids: Iterable[int]) -> bytes:
    return _encode(array("i", ids))


def decode_ids(data: bytes) -> list[int]:
    return _decode(array("i"), data)


def encode_logprobs(values: Sequence[float | None]) -> bytes:
    """A missing log-prob is NaN, never 0.0: the trainer masks its token and counts it."""
    return _encode(array("f", (float("nan") if value is None else value for value in values)))


def decode_logprobs(data: bytes) -> list[float]:
    return _decode(array("f"), data)


def _encode(values: "array[int] | array[float]") -> bytes:
    if _SWAP:
        values.byteswap()
    return values.tobytes()


def _decode(into: "array[Number]", data: bytes) -> "list[Number]":
    into.frombytes(data)
    if _SWAP:
        into.byteswap()
    return into.tolist()
