"""Checkpoints on disk: `CHECKPOINTS/RUN/step_000010/` holds version 10.

A checkpoint is the folder that the backend's snapshot writes (a plain `transformers` folder and the rest of its state),
with two files more: `data_position.json` (what was trained on) and `COMMITTED`: its format, whose it is, and the size
and SHA-256 of every other file.

Promises: it is written under a temporary name, flushed, and renamed with its marker inside, so it appears whole or not
at all, whatever the moment of a crash; a folder whose marker is missing or does not match is never loaded, and said so
by name; writing a version that is already complete changes nothing; nothing stays behind when a write fails.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...activities.weights.room import room
from ...schemas.messages.training import DataPosition
from .backend import Snapshot
from .recovery import Found

log = logging.getLogger(__name__)

MARKER = "COMMITTED"
FORMAT = 1
"""Of the files beside those of the model; another number is not loaded."""
POSITION_FILE = "data_position.json"
TEMPORARY = ".tmp-"
NAME = re.compile(r"step_(\d{6,})")


class Damaged(Exception):
    """A checkpoint that must not be loaded; the message names the file. Never leaves this module."""


class Save(NamedTuple):
    """What becomes a checkpoint."""

    snapshot: Snapshot
    position: DataPosition

    @property
    def version(self) -> int:
        return self.snapshot.version


def checkpoint_folder(root: Path, version: int) -> Path:
    return root / f"step_{version:06d}"


def is_complete(folder: Path, execution: str) -> bool:
    """Marker present, of this run, and every file as it says. Says what is wrong in the log."""
    try:
        _verify(folder, execution)
    except Damaged as fault:
        if folder.exists():
            log.warning("%s; this checkpoint is not used", fault)
        return False
    return True


def write_checkpoint(save: Save, root: Path, execution: str) -> Path:
    """Under `root`; returns its folder. Raises `StorageFull` when there is no room."""
    final = checkpoint_folder(root, save.version)
    if is_complete(final, execution):
        return final
    for leftover in root.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover)  # The one trainer of this run died while it wrote this.
    scratch = root / f"{TEMPORARY}{final.name}"
    with room(root, save.snapshot.nbytes):
        scratch.mkdir()
        try:
            _write_files(save, scratch, execution)
            if final.exists():
                shutil.rmtree(final)  # Damaged, or it would have been complete above.
            scratch.rename(final)
            _flush(root)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return final


def _write_files(save: Save, scratch: Path, execution: str) -> None:
    """Everything, the marker last, flushed to disk."""
    save.snapshot.write(scratch)
    (scratch / POSITION_FILE).write_text(save.position.model_dump_json(indent=1))
    files = {file.name: _fingerprint(file) for file in sorted(scratch.iterdir())}
    marker = {"format": FORMAT, "execution": execution, "version": save.version, "files": files}
    (scratch / MARKER).write_text(json.dumps(marker, indent=1))
    for file in scratch.iterdir():
        _flush(file)
    _flush(scratch)


def newest_complete(root: Path, up_to: int, execution: str) -> Found:
    """Of version `up_to` or older. Damaged ones are passed over and noted."""
    notes: list[str] = []
    for version, folder in _folders(root):
        if version > up_to:
            continue
        try:
            _verify(folder, execution)
        except Damaged as fault:
            log.warning("%s; this checkpoint is not used", fault)
            notes.append(f"{fault}; an older checkpoint, or the initial model, was used")
        else:
            return Found(folder, version, tuple(notes))
    return Found(None, 0, tuple(notes))


def prune(root: Path, keep: int) -> list[int]:
    """Remove all but the newest `keep`; returns the removed versions. Only called after a complete one was written."""
    old = list(_folders(root))[keep:]
    for _, folder in old:
        # Without its marker a half-removed folder is no checkpoint.
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)
    return [version for version, _ in old]


def _folders(root: Path) -> Iterator[tuple[int, Path]]:
    """Newest first."""
    found = [(int(match[1]), path) for path in root.glob("step_*") if (match := NAME.fullmatch(path.name))]
    yield from sorted(found, reverse=True)


def _verify(folder: Path, execution: str) -> None:
    try:
        marker = json.loads((folder / MARKER).read_text())
        files, owner, form = marker["files"], marker["execution"], marker["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{folder / MARKER} is missing or unreadable") from error
    if form != FORMAT:
        raise Damaged(f"{folder / MARKER} is of format {form}; this release reads format {FORMAT}")
    if owner != execution:
        raise Damaged(f"{folder / MARKER} is of another run of the same name")
    for name, expected in files.items():
        try:
            found = _fingerprint(folder / name)
        except OSError as error:
            raise Damaged(f"{folder / name} cannot be read: {error.strerror}") from error
        if found != expected:
            raise Damaged(f"{folder / name} is damaged: it is not what {MARKER} says")


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
