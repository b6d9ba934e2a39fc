"""Whether the stack's gateway answers: an agent that is started without it would fail for no fault of its own."""

import asyncio
import json
import time
from urllib.error import URLError
from urllib.request import urlopen

from ...schemas.errors import Unreachable

ANSWERS_WITHIN_S = 60.0
"""Of several tries; it may be starting."""
TRY_S, PAUSE_S = 5.0, 0.5


async def require_gateway(address: str, stack_id: str) -> None:
    """Raises `Unreachable`."""
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    while why := await asyncio.to_thread(_fault, address, stack_id):
        if time.monotonic() > deadline:
            raise Unreachable(f"the gateway at {address} did not answer within {ANSWERS_WITHIN_S:g} s: {why}")
        await asyncio.sleep(PAUSE_S)


def _fault(address: str, stack_id: str) -> str:
    """Empty: it answers, and is ours (L14)."""
    try:
        with urlopen(f"http://{address}/healthz", timeout=TRY_S) as answer:
            found = json.load(answer)
    except (URLError, OSError, ValueError) as error:
        return str(error)
    theirs = found.get("stack_id") if isinstance(found, dict) else None
    return "" if theirs == stack_id else f"it is the gateway of another stack ({theirs})"
