"""Why vLLM did not start, or died: it tells the process that started it only that its child failed; the reason stays in
a log.

The child writes the exception into a file of its parent, which is there as long as somebody may ask. Used by
`VllmEngine` and, in the child, by the extension, which vLLM imports before it loads a model.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...schemas.environment import START_FAULT_VARIABLE
from ...schemas.errors import one_line

LOGGER = "vllm.v1.engine.core"
MOST = 1000


@contextmanager
def start_fault() -> Iterator[Path]:
    """Around a start and what follows: the file, empty unless the child has told its reason."""
    with tempfile.NamedTemporaryFile(prefix="psrl-start-") as file:
        os.environ[START_FAULT_VARIABLE] = file.name
        try:
            yield Path(file.name)
        finally:
            if os.environ.get(START_FAULT_VARIABLE) == file.name:
                del os.environ[START_FAULT_VARIABLE]


class _Writer(logging.Handler):
    def __init__(self, file: str) -> None:
        super().__init__(logging.ERROR)
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # Not there any more, its parent has given the engine up.
        with suppress(FileNotFoundError), open(self._file, "r+b") as file:
            file.write(one_line(f"{type(error).__name__}: {error}").encode()[:MOST])


def report_start_faults() -> None:
    """In the child."""
    if file := os.environ.get(START_FAULT_VARIABLE):
        logging.getLogger(LOGGER).addHandler(_Writer(file))
