"""A call of user code that may be repeated.

Promise: the pauses between attempts are bounded.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...schemas.errors import UserCodeFailed

Value = TypeVar("Value")

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.1
"""Doubles with each attempt, up to MAX_PAUSE_S: what failed because a service was busy may succeed a little later."""
MAX_PAUSE_S = 5.0


async def with_attempts(what: str, attempt: Callable[[], Awaitable[Value]], max_attempts: int) -> Value:
    """Raises `UserCodeFailed` with the last failure. `what` names the function in the log."""
    for number in range(1, max_attempts + 1):
        try:
            return await attempt()
        except UserCodeFailed as failure:
            log.warning("%s: attempt %d of %d failed: %s", what, number, max_attempts, failure)
            if number == max_attempts:
                raise
            await asyncio.sleep(min(RETRY_PAUSE_S * 2 ** (number - 1), MAX_PAUSE_S))
    raise AssertionError("max_attempts is at least 1")
