"""A process that runs user code for another one: `python -m psrl.activities.user_code.child SOCKET` (`process.py`).

It prepares one function and then answers one argument at a time, in its main thread. It ends when the process that
started it does: the lifeline on standard input closes, or, while a function holds the interpreter, the watchdog fires.
"""

import asyncio
import faulthandler
import os
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...schemas.errors import UserCodeFailed, UserError
from .prepared import Found, Prepared, Recipe, answer
from .signals import needs_process
from .started import end_with_all, keep_orphans

WATCHDOG_MARGIN_S = 10.0
"""Past a call's time limit: whoever asked has ended this process by then, unless it is gone itself."""
GB = 1 << 30


def main(socket: int) -> None:
    threading.Thread(target=_end_with_parent, args=(_lifeline(),), daemon=True).start()
    keep_orphans()
    # A crash is told by a traceback in the log; its memory image would fill the disk.
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = Connection(socket)
    try:
        sys.path[:] = connection.recv()
        recipe, memory_gb = connection.recv()
        prepared = _prepared(connection, recipe)
        if prepared is not None:
            _serve(connection, prepared, memory_gb)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _prepared(connection: Connection, recipe: Recipe) -> Prepared | None:
    try:
        prepared = recipe.prepare()
    except UserError as refusal:
        connection.send(refusal)
        return None
    connection.send(Found(needs_process(prepared.function), prepared.about, prepared.at_once))
    return prepared


def _serve(connection: Connection, prepared: Prepared, memory_gb: float | None) -> None:
    """One loop for all calls of an async function, since its clients and sessions belong to one."""
    ours, first = os.getpid(), _data_bytes()
    limit = None if memory_gb is None else int(memory_gb * GB)
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = first + limit
        resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    with asyncio.Runner() as runner:
        while True:
            argument, timeout_s = connection.recv()
            faulthandler.dump_traceback_later(timeout_s + WATCHDOG_MARGIN_S, exit=True)
            reply = _reply(prepared, argument, runner)
            faulthandler.cancel_dump_traceback_later()
            if os.getpid() != ours:  # a copy, made by a fork that the function did not end
                os._exit(0)
            # What it forgot to cancel would hit the next call.
            signal.setitimer(signal.ITIMER_REAL, 0)
            # What is kept from call to call is a leak, and would fail a call that is not to blame.
            worn = limit is not None and _data_bytes() - first > limit / 2
            connection.send((reply, worn))


def _reply(prepared: Prepared, argument: Any, runner: asyncio.Runner) -> Any:
    try:
        return answer(prepared, argument, runner.run)
    except UserCodeFailed as failure:
        return failure


def _data_bytes() -> int:
    """What RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))


def _lifeline() -> int:
    """Standard input under another number: user code that reads it finds it empty."""
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def _end_with_parent(lifeline: int) -> None:
    """Together with what user code has started."""
    ours, read = os.getpid(), os.read
    while read(lifeline, 1):
        pass
    end_with_all(ours)


if __name__ == "__main__":
    main(int(sys.argv[1]))
