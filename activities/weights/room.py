"""Room on disk: what fails for lack of it becomes `StorageFull`, so that a run is held instead of failed.

Used wherever weights or checkpoints are written. The writer itself removes what it left half-written.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...schemas.errors import StorageFull

CODES = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def room(folder: Path, needed: int) -> Iterator[None]:
    """Around writing about `needed` bytes into `folder`, which is made. Raises `StorageFull` before anything is written
    when they do not fit, and in place of any error on the way that a full disk or an exhausted quota caused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < needed:
            raise _full(folder, needed, "No space left on device")
        yield
    except Exception as error:
        cause = _want_of_room(error)
        if cause is None or isinstance(error, StorageFull):
            raise
        raise _full(folder, needed, cause) from error


def _full(folder: Path, needed: int, cause: str) -> StorageFull:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    return StorageFull(
        f"{folder}: {cause}: {needed:,} bytes are needed, {free:,} are free. Free space; the run continues by itself"
    )


def _want_of_room(error: BaseException | None) -> str | None:
    """The system's words for it, when lack of room is what made `error`. Writers in other languages (safetensors,
    torch) hide the error number in their text, or report a consequence of it with the cause attached."""
    while error is not None:
        for code in CODES:
            words = os.strerror(code)
            if (isinstance(error, OSError) and error.errno == code) or words in str(error):
                return words
        error = error.__cause__ or error.__context__
    return None
