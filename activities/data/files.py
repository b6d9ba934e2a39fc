"""From the entries of `data.train_files` and `data.val_files` to files: an entry is a file, a pattern, or a folder."""

import re
from collections.abc import Iterable
from pathlib import Path

from ...schemas.errors import DataError
from ...schemas.text import shown
from .compressed import bare_suffix
from .rows import READERS, SUFFIXES

PATTERN = re.compile(r"[*?[]")
SPLIT = re.compile(r"(?<![a-z])(train|test|validation|valid|val|dev|eval)(?![a-z])", re.IGNORECASE)
"""How files are named after the split they belong to: `train-00000-of-00002`, `gsm8k_test`."""
ALLOWED = "files, patterns and folders of this machine (what the Hub has is downloaded first)"
ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""What the `datasets` library writes beside the data."""


def data_files(entries: Iterable[str], key: str) -> list[Path]:
    """In the order of the entries, within one by name. Raises `DataError` where an entry leads to nothing."""
    found: list[Path] = []
    for entry in entries:
        try:
            found += _files(entry, key)
        # No right to look there; a name or a pattern that is none; nobody's home.
        except (OSError, ValueError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise DataError(f"{key}: {shown(entry)} cannot be looked up: {why}") from error
    return found


def _files(entry: str, key: str) -> list[Path]:
    if "://" in entry:
        raise DataError(f"{key}: {entry} is an address; allowed: {ALLOWED}")
    path = Path(entry).expanduser()
    if path.is_dir():
        return _of_folder(path, key)
    if path.exists() and not path.is_file():
        raise DataError(f"{key}: {path.absolute()} is neither a file nor a folder")
    if path.exists():
        return [path]
    if path.is_symlink():
        raise DataError(f"{key}: {path.absolute()} is a link to {path.readlink()}, which is not there")
    if not PATTERN.search(entry):
        name = str(path.absolute())
        raise DataError(f"{key}: {name if name.isprintable() else shown(name)} does not exist; allowed: {ALLOWED}")
    anchor = Path(path.anchor or ".")
    found = _filled(anchor.glob(str(path.relative_to(path.anchor))))
    if not found:
        raise DataError(f"{key}: no file that is not empty matches {path.absolute()}")
    return found


def _of_folder(folder: Path, key: str) -> list[Path]:
    inside = _filled(folder.iterdir())
    found = [file for file in inside if bare_suffix(file) in READERS and file.name not in ABOUT]
    if not found:
        folders = ", ".join(sorted(item.name for item in folder.iterdir() if item.is_dir()))
        hint = f"; it has the folders {folders}" if folders else ""
        raise DataError(f"{key}: {folder.absolute()} holds no data file{hint}; allowed: {SUFFIXES}")
    splits = {match[0].lower(): file.name[: match.end()] for file in found if (match := SPLIT.search(file.name))}
    if len(splits) > 1:
        raise DataError(
            f"{key}: {folder.absolute()} holds files of several splits: {', '.join(sorted(splits))}; name one, for "
            f"example {key}={folder}/{splits[min(splits)]}*"
        )
    return found


def _filled(files: Iterable[Path]) -> list[Path]:
    """Those that writers of many parts leave empty or hidden are no data."""
    return sorted(file for file in files if file.is_file() and file.name[0] not in "._" and file.stat().st_size)
