"""Calls to PostgreSQL in the middle of a generation. One that is away is waited for, because what the engine has
sampled would be lost otherwise. Used by the writer and by `TurnStore`; the activity heartbeats meanwhile.

A call may have taken effect although its answer was lost: what is passed here must be safe to repeat.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from ...schemas.errors import Unreachable

PATIENCE_S = 300.0
"""Longer than a restart of PostgreSQL with recovery, or its fail-over, takes: a minute, with a wide margin."""
ATTEMPT_S = 30.0
"""A server that hangs without closing its connections is given up after so long, and tried again."""
RETRY_PAUSE_S = 0.5

Result = TypeVar("Result")


async def patiently(call: Callable[[bool], Awaitable[Result]], what: str) -> Result:
    """The result of `call(repeated)`. Raises `Unreachable` when PostgreSQL stays away for `PATIENCE_S`."""
    began, repeated = time.monotonic(), False
    while True:
        try:
            async with asyncio.timeout(ATTEMPT_S):
                return await call(repeated)
        except (OperationalError, InterfaceError, NoConnectionFree, TimeoutError) as error:
            waited = time.monotonic() - began
            if waited > PATIENCE_S:
                why = getattr(error, "orig", None) or repr(error)
                raise Unreachable(f"PostgreSQL did not take {what} for {waited:.0f} s: {why}") from error
        repeated = True
        await asyncio.sleep(RETRY_PAUSE_S)
