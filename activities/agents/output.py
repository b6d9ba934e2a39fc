"""What an agent prints: its beginning goes into a file, its last words are remembered.

Promise: neither file nor memory grows beyond a bound, and a program that prints without end is not held up.
"""

import os
import threading
from pathlib import Path

MAX_FILE = 1 << 20
"""Bytes; of a longer output the beginning is kept."""
LAST_WORDS = 600
ENDS_WITHIN_S = 2.0
"""After its process group was killed. One that left the group may hold the pipe for ever."""


class Output:
    """`write_end` is for the process."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self._file = file.open("wb")
        self._read_end, self.write_end = os.pipe()
        self._left, self._last, self._closed = MAX_FILE, b"", False
        self._reader = threading.Thread(target=self._read, name="output of an agent", daemon=True)
        self._reader.start()

    @property
    def last_words(self) -> str:
        return self._last.decode(errors="replace").strip()

    def close(self) -> None:
        """After the process has ended. May be repeated."""
        if not self._closed:
            self._closed = True
            os.close(self.write_end)
            self._reader.join(ENDS_WITHIN_S)

    def _read(self) -> None:
        with self._file, os.fdopen(self._read_end, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                self._file.write(piece[: self._left])
                self._left -= min(self._left, len(piece))
                self._last = (self._last + piece)[-LAST_WORDS:]
            if not self._left:
                self._file.write(b"\n... cut here; it ended with:\n" + self._last)
