"""Checkpoints on disk: `CHECKPOINTS/RUN/step_000010/` holds version 10.

A checkpoint is a plain `transformers` folder (safetensors, config, tokenizer) with three files more: `trainer_state.pt`
(optimizer, random numbers, version), `data_position.json` (what was trained on) and `COMMITTED`: its format, whose it
is, and the size and SHA-256 of every other file.

Promises: it is written under a temporary name, flushed, and renamed with its marker inside, so it appears whole or not
at all, whatever the moment of a crash; a folder whose marker is missing or does not match is never loaded, and said so
by name; writing a version that is already complete changes nothing; nothing stays behind when a write fails.
"""

import hashlib
import json
import logging
import os
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...activities.weights.room import room
from ...schemas.config import RunConfig
from ...schemas.errors import ModelError
from .shapes import configured_shapes, difference, shapes_of
from .snapshot import Snapshot
from .state import TrainerState, load_model, make_optimizer

log = logging.getLogger(__name__)

MARKER = "COMMITTED"
FORMAT = 1
"""Of the files beside those of `transformers`; another number is not loaded."""
STATE_FILE = "trainer_state.pt"
POSITION_FILE = "data_position.json"
TEMPORARY = ".tmp-"
NAME = re.compile(r"step_(\d{6,})")


class Damaged(Exception):
    """A checkpoint that must not be loaded; the message names the file. Never leaves this module."""


class Loaded(NamedTuple):
    state: TrainerState | None
    notes: tuple[str, ...]
    """Which newer checkpoints were passed over, and why."""


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


def write_checkpoint(snapshot: Snapshot, tokenizer: Any, root: Path, execution: str) -> Path:
    """Save `snapshot` under `root`; returns its folder. Raises `StorageFull` when there is no room."""
    final = checkpoint_folder(root, snapshot.version)
    if is_complete(final, execution):
        return final
    for leftover in root.glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover)  # The one trainer of this run died while it wrote this.
    scratch = root / f"{TEMPORARY}{final.name}"
    with room(root, snapshot.nbytes):
        scratch.mkdir()
        try:
            _write_files(snapshot, tokenizer, scratch, execution)
            if final.exists():
                shutil.rmtree(final)  # Damaged, or it would have been complete above.
            scratch.rename(final)
            _flush(root)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return final


def _write_files(snapshot: Snapshot, tokenizer: Any, scratch: Path, execution: str) -> None:
    """Everything, the marker last, flushed to disk."""
    # A copy of the mapping: the writer empties it shard by shard, and a failed write is repeated.
    snapshot.model.save_pretrained(scratch, state_dict=dict(snapshot.tensors))
    tokenizer.save_pretrained(scratch)
    with (scratch / STATE_FILE).open("wb") as stream:  # An open file: its errors keep their number.
        torch.save(snapshot.trainer, stream)
    (scratch / POSITION_FILE).write_text(snapshot.position.model_dump_json(indent=1))
    files = {file.name: _fingerprint(file) for file in sorted(scratch.iterdir())}
    marker = {"format": FORMAT, "execution": execution, "version": snapshot.version, "files": files}
    (scratch / MARKER).write_text(json.dumps(marker, indent=1))
    for file in scratch.iterdir():
        _flush(file)
    _flush(scratch)


def load_newest(root: Path, newest: int, execution: str, config: RunConfig, device: torch.device) -> Loaded:
    """The newest complete checkpoint of version `newest` or older, if any. Damaged ones are passed over and noted."""
    notes: list[str] = []
    for version, folder in _folders(root):
        if version > newest:
            continue
        try:
            _verify(folder, execution)
        except Damaged as fault:
            log.warning("%s; this checkpoint is not used", fault)
            notes.append(f"{fault}; an older checkpoint, or the initial model, was used")
        else:
            return Loaded(_load(folder, version, config, device), tuple(notes))
    return Loaded(None, tuple(notes))


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


def _load(folder: Path, version: int, config: RunConfig, device: torch.device) -> TrainerState:
    model = load_model(folder, config, device)
    differs = difference(configured_shapes(config), shapes_of(model.state_dict()))
    if differs is not None:
        raise ModelError(
            f"model.path={config.model.path!r} does not fit {folder}: {differs} as in the checkpoint. "
            "Put the model back that the run began with"
        )
    optimizer = make_optimizer(model, config)
    try:
        stored = torch.load(folder / STATE_FILE, map_location=device, weights_only=True)
        optimizer.load_state_dict(stored["optimizer"])
    except (ValueError, KeyError, pickle.UnpicklingError) as error:
        raise ModelError(f"{folder / STATE_FILE} does not fit the model: {error}") from error
    torch.set_rng_state(stored["rng"].cpu())
    if device.type == "cuda":
        torch.cuda.set_rng_state(stored["rng_cuda"].cpu(), device)
    log.info("loaded %s", folder)
    return TrainerState(config, model, optimizer, version)


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
