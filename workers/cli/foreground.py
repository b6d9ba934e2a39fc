"""`psrl up --foreground`: stay until Ctrl-C or SIGTERM, then stop the stack."""

import signal
from collections.abc import Callable
from pathlib import Path

from ..stack.up import down


def stay(home: Path, say: Callable[[str], None]) -> None:
    """There is no moment in which a signal leaves the stack running, and further signals do not cut its end short."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        say("Ctrl-C stops it")
        while True:
            signal.pause()
    except KeyboardInterrupt:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        say("stopping …")
        down(home, say)
