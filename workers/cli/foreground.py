"""`psrl up --foreground`: stay until Ctrl-C or SIGTERM, then stop the stack; or until the stack has ended otherwise."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from ...schemas.errors import UserError
from ..stack.settings import UpRequest
from ..stack.supervision import Supervisor
from ..stack.up import down, up

LOOK_S = 1.0
MISSED = 3
"""So many looks in a row without an answer: a supervisor that is busy misses one."""


async def up_and_stay(request: UpRequest, say: Callable[[str], None]) -> None:
    """To be cancelled by the signal, once: start and stay are one piece of work, so there is no moment in which a
    signal leaves the stack running. Raises `UserError` when the stack was ended by somebody else."""
    await up(request, say)
    try:
        say(up_line(request.home))
        say("Ctrl-C stops it")
        await _until_silent(Supervisor(request.home))
    except asyncio.CancelledError:
        say("stopping …")
        down(request.home, say)
        return
    down(request.home, lambda _: None)  # a killed supervisor may leave processes
    raise UserError(f"the stack under {request.home} has ended: `psrl down` was called, or its supervisor was killed")


def up_line(home: Path) -> str:
    return f"the stack is up; logs in {home / 'logs'}"


async def _until_silent(supervisor: Supervisor) -> None:
    missed = 0
    while missed < MISSED:
        await asyncio.sleep(LOOK_S)
        missed = 0 if supervisor.answers() else missed + 1
