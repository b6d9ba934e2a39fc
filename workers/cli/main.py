"""`psrl`, as a process: Ctrl-C is in hand before anything heavy is imported. The commands are in `commands.py`.

Imports take most of a command's first second, and a KeyboardInterrupt inside one may be swallowed or come out as
something else. So Ctrl-C ends the process at once with status 130, unless a command has work that must put something in
order (`interrupts.py`).
"""

import os
import signal


def main() -> None:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    import sys

    from .boundary import leave

    try:
        from .commands import app

        app(prog_name="psrl")
    finally:
        leave(sys.exc_info()[1])


if __name__ == "__main__":
    main()
