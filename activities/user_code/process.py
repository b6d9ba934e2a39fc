"""A process for one function of the user's, and what becomes of it. Used by `Pool` and, at admission, by `examine`.

Promises: the process and all that it starts end with `end`, whatever it is doing; a process that ends by itself costs
the call that it was in and says how it ended. Methods block, but for `end`.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any
from weakref import WeakSet

from ...schemas.config.reward import PROCESS_STARTS_WITHIN_S
from ...schemas.environment import POSTGRES_URL
from ...schemas.errors import UserCodeFailed, UserError
from ...schemas.text import named
from .prepared import Found, Recipe
from .started import end_with_all

COMMAND = [sys.executable, "-m", "psrl.activities.user_code.child"]
ENDS_WITHIN_S = 5.0
"""From closing its end of the socket to its exit status, for a process that does so by itself."""


class UserProcess:
    def __init__(self, recipe: Recipe, memory_gb: float | None = None, output: int | None = None) -> None:
        """`output`: where it prints to; by default into the worker's log."""
        self._recipe, self._memory_gb, self._output = recipe, memory_gb, output
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ended = False
        self.ready = False
        self.worn = False
        """It holds memory that its earlier calls have not given back."""

    @property
    def alive(self) -> bool:
        return not self._ended and self._process is not None and self._process.poll() is None

    def start(self) -> Found:
        """Raises the `UserError` that refuses the function, or `UserCodeFailed` when the import itself ends the
        process."""
        try:
            connection = self._open()
        except OSError as error:  # no process, no memory or no file to be had
            raise UserCodeFailed(f"no process could be started: {named(error)}") from error
        # What the recipe names is looked for where this process would look.
        said = self._exchange(connection, sys.path, (self._recipe, self._memory_gb))
        if isinstance(said, UserError):
            self.end()
            raise said
        assert isinstance(said, Found)
        self.ready = True
        return said

    def ask(self, argument: Any, timeout_s: float) -> Any:
        """Raises `UserCodeFailed`. The limit is the caller's to keep, by `end`; the process heeds it only when it is
        left alone."""
        assert self._connection is not None
        reply, self.worn = self._exchange(self._connection, (argument, timeout_s))
        if isinstance(reply, UserCodeFailed):
            raise reply
        return reply

    def end(self) -> None:
        """At once, from any thread; a call in progress fails."""
        with self._lock:
            process, self._ended = None if self._ended else self._process, True
        if process is not None:
            _kill(process)

    def _open(self) -> Connection:
        ours, its = socket.socketpair()
        with its, self._lock:
            self._connection = Connection(ours.detach())
            if self._ended:
                raise UserCodeFailed("the process was ended before it began")
            self._process = subprocess.Popen(
                [*COMMAND, str(its.fileno())],
                stdin=subprocess.PIPE,
                stdout=2 if self._output is None else self._output,
                stderr=self._output,
                # An agent's own commands, and with them the policy, would see the password of the store.
                env={name: value for name, value in os.environ.items() if name != POSTGRES_URL},
                pass_fds=[its.fileno()],
                start_new_session=True,
            )
        _alive.add(self)
        return self._connection

    def _exchange(self, connection: Connection, *messages: Any) -> Any:
        try:
            for message in messages:
                connection.send(message)
            return connection.recv()
        except (EOFError, OSError):
            raise UserCodeFailed(self._how_it_ended()) from None

    def _how_it_ended(self) -> str:
        assert self._process is not None
        try:
            status = self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return "it closed the connection to the process that runs it"
        finally:
            self.end()
        return f"it ended the process that runs it ({how(status)})"


def examine(recipe: Recipe) -> Found:
    """As `start` of a process that is used for nothing else, within its time. A module that ends its process on import
    does so there."""
    process = UserProcess(recipe)
    late = threading.Timer(PROCESS_STARTS_WITHIN_S, process.end)
    late.start()
    try:
        return process.start()
    except UserCodeFailed:
        if late.finished.is_set():
            raise UserCodeFailed(f"it was not imported within {PROCESS_STARTS_WITHIN_S} s") from None
        raise
    finally:
        late.cancel()
        process.end()


def how(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    return f"{name}; the machine may be out of memory" if name == "SIGKILL" else name


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """With all that it started: the process leads a group of its own, which may have outlived it."""
    end_with_all(process.pid)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


_alive: "WeakSet[UserProcess]" = WeakSet()


@atexit.register
def _end_all() -> None:
    for process in list(_alive):
        process.end()
