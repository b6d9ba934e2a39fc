"""Writes checkpoints beside the trainer's thread: at most one at a time, from a snapshot.

Promises: `begin` returns as soon as the write before it has ended; an error of a write is never lost: the next call
repeats the write in the caller's thread, and an error of that one is the caller's.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from .checkpoint import Save

log = logging.getLogger(__name__)


class Saver:
    """Called from the trainer's thread only. The interpreter waits for a write in progress before it exits."""

    def __init__(self, write: Callable[[Save], None]) -> None:
        self._write = write
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: tuple[Save, Future[None]] | None = None

    @property
    def version(self) -> int | None:
        """That is being written, or waits to be written again."""
        return None if self._pending is None else self._pending[0].version

    def begin(self, save: Save) -> None:
        self.finish()
        self._pending = save, self._thread.submit(self._write, save)

    def check(self) -> None:
        """Does not wait for a write in progress."""
        if self._pending is not None and self._pending[1].done():
            self.finish()

    def finish(self) -> None:
        """Nothing is being written when this returns. When it raises, the snapshot is kept for the next call."""
        if self._pending is None:
            return
        save, future = self._pending
        error = future.exception()
        if error is not None:
            log.warning("checkpoint of version %d was not written (%s); it is written again", save.version, error)
            self._write(save)
        self._pending = None

    def close(self) -> None:
        """A write in progress still ends by itself."""
        self._thread.shutdown(wait=False)
