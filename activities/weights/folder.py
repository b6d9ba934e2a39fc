"""Files of a model folder as people have them: links, Git LFS's pointers, JSON. Every fault is a `ModelError`."""

import json
from pathlib import Path
from typing import Any

from ...schemas.errors import ModelError

LFS_POINTER = b"version https://git-lfs"
"""How a file begins that a clone without Git LFS has in another's place."""


def read_object(file: Path) -> dict[str, Any]:
    """Of a JSON file."""
    if not is_there(file):
        raise ModelError(f"model.path={file.parent} has no {file.name}")
    refuse_pointer(file)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{file} must hold a JSON object")
    return values


def refuse_pointer(file: Path) -> None:
    """Raises `ModelError` for a file that cannot be read, too."""
    try:
        with file.open("rb") as content:
            pointer = content.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    if pointer:
        raise ModelError(f"{file} is Git LFS's pointer to the file; `git lfs pull` fetches it")


def is_there(file: Path) -> bool:
    """Raises `ModelError` for a link that leads nowhere: of the Hub's cache, people copy the links alone."""
    if file.is_file():
        return True
    if file.is_symlink():
        raise ModelError(f"{file} is a link to {file.readlink()}, which is no file; `cp -rL` copies what links lead to")
    return False
