"""Ctrl-C while a command has work that must put something in order. At any other moment it ends the process at once
(`main.py`)."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`. SIGINT and SIGTERM cancel it, once: what it then puts in order is not cut short by more of
    them. Raises `KeyboardInterrupt` after that."""
    interrupted = False

    async def guarded() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> None:
            nonlocal interrupted
            if not interrupted:
                interrupted = True
                task.cancel()

        for signum in SIGNALS:
            loop.add_signal_handler(signum, interrupt)
        return await work

    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
