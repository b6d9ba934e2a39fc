"""Functions that tests offer to the policy as tools."""

import asyncio
import time
from typing import Literal

from pydantic import BaseModel


class Point(BaseModel):
    """A place on a map."""

    x: int
    y: int = 0


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b (int): the second
    """
    return a + b


async def look_up(word: str, language: Literal["en", "no"] = "en") -> dict[str, str]:
    """Looks a word up,
    in a dictionary.

    :param word: what to look up
    """
    await asyncio.sleep(0)
    return {"word": word, "language": language}


def distance(start: Point, ends: list[Point]) -> float:
    """How far it is."""
    return float(sum(abs(end.x - start.x) + abs(end.y - start.y) for end in ends))


def fails(why: str) -> str:
    """Never works."""
    raise RuntimeError(why)


def leaves() -> None:
    """Ends the process, if it may."""
    raise SystemExit(3)


def hangs() -> None:
    """Takes its time."""
    time.sleep(2)


def talks(length: int) -> str:
    """Says a lot."""
    return "".join(str(number % 10) for number in range(length))


def once() -> str:
    """Must not be done twice."""
    return "done"


once.repeatable = False  # type: ignore[attr-defined]


def silent(a: int) -> int:
    return a


def untyped(a) -> int:  # type: ignore[no-untyped-def]
    """Has no type."""
    return int(a)


def unnamed(*numbers: int) -> int:
    """Takes any number of them."""
    return sum(numbers)


def odd(event: asyncio.Event) -> None:
    """Takes what JSON does not know."""
