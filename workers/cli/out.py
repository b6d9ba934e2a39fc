"""Whether the file of `--out` can be written, asked before a command works minutes for it."""

from pathlib import Path
from tempfile import TemporaryFile

from ...schemas.errors import UserError


def check_out(file: Path) -> None:
    """Leaves nothing behind. Raises `UserError`."""
    if file.is_dir():
        raise UserError(f"--out {file} is a directory; allowed: a file")
    if file.exists() and not file.is_file():
        return  # such as /dev/stdout
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--out {file} cannot be written: {folder}: {error.strerror}") from error
