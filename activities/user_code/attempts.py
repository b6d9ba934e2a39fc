"""A call of user code that may be repeated, and what is kept of its failure.

Promises: whatever the user's code raises becomes one short line that can be stored; the pauses between attempts are
bounded.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...schemas.errors import UserCodeFailed
from ...schemas.text import described, first_line, storable

Value = TypeVar("Value")

log = logging.getLogger(__name__)

MAX_LINE = 300
"""Characters of a failure, or of a filter's reason, that are kept."""
MAX_SHOWN = 80
"""Characters of a returned value that a failure quotes."""
RETRY_PAUSE_S = 0.1
"""Doubles with each attempt, up to MAX_PAUSE_S: what failed because a service was busy may succeed a little later."""
MAX_PAUSE_S = 5.0


async def with_attempts(what: str, attempt: Callable[[], Awaitable[Value]], max_attempts: int) -> Value:
    """Raises `UserCodeFailed` with the last failure, in one short line. `what` names the function in the log."""
    for number in range(1, max_attempts + 1):
        try:
            return await attempt()
        except Exception as error:  # the border to user code, which may raise anything
            failure = one_line(error)
            log.warning("%s: attempt %d of %d failed: %s", what, number, max_attempts, failure)
            if number == max_attempts:
                raise UserCodeFailed(failure) from error
            await asyncio.sleep(min(RETRY_PAUSE_S * 2 ** (number - 1), MAX_PAUSE_S))
    raise AssertionError("max_attempts is at least 1")


def one_line(error: Exception) -> str:
    """`ValueError: no verdict`; a failure that we named ourselves without its type."""
    said = [first_line(described(error))]
    if not isinstance(error, UserCodeFailed):
        said.insert(0, type(error).__name__)
    return storable(": ".join(filter(None, said)), MAX_LINE)


def shown(value: object) -> str:
    """How a failure quotes what was returned."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
