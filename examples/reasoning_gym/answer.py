"""Finds the answer in a chat model's reply. Standard library only: it is tested without the task library."""

from __future__ import annotations

import re

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
# A minus that follows a number subtracts; it is no sign. A comma belongs to a number only before three digits.
NUMBER = re.compile(r"(?:(?<![\d.])-)?\d+(?:,\d{3})*(?:\.\d+)?")


def find_answer(reply: str) -> str | None:
    """What stands between the last answer tags, else the last number, else None: the reply gives no answer.

    The last number, because small models restate the problem first: `58 + 26 = 84`.
    """
    tagged = TAGGED.findall(reply)
    if tagged:
        return str(tagged[-1]).strip()
    numbers = NUMBER.findall(reply)
    return str(numbers[-1]) if numbers else None
