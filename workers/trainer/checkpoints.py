"""The checkpoints of one run: files and their rows in the store, written beside the trainer's thread.

A crash during a write loses that checkpoint and nothing else: the one before it and the stored batches, which are never
removed while their run is kept, lead to the same state.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ...schemas.ids import RunId
from ...schemas.messages.training import CheckpointResult, DataPosition
from . import checkpoint
from .backend import Snapshot
from .checkpoint import Save
from .recovery import Found
from .runs import AdmittedRun
from .saver import Saver

log = logging.getLogger(__name__)


class CheckpointRows(Protocol):
    """What the store knows of a run's checkpoints."""

    def position(self, version: int) -> DataPosition:
        """Of the batches below `version`."""
        ...

    def add(self, version: int, path: Path) -> None:
        """Does nothing when it is there."""
        ...

    def remove(self, versions: list[int]) -> None: ...


class Checkpoints:
    def __init__(self, rows: CheckpointRows, root: Path, run_id: RunId, admitted: AdmittedRun) -> None:
        self._rows = rows
        self._root = root / run_id
        self._run_id = run_id
        self._execution, self._config = admitted
        self._saver = Saver(self._write)

    def find(self, version: int, wait: bool) -> CheckpointResult | None:
        """The checkpoint of `version`, if it is complete or, without `wait`, being written. The row of a complete one
        is made good if it is missing."""
        if self._saver.version == version and not wait:
            return self._result(version, seconds=0.0, complete=False)
        self._saver.finish()
        if not checkpoint.is_complete(checkpoint.checkpoint_folder(self._root, version), self._execution):
            return None
        self._record(version)
        return self._result(version, seconds=0.0, complete=True)

    def save(self, take: Callable[[], Snapshot], wait: bool) -> CheckpointResult:
        """Take a snapshot; write, record, and remove those beyond `trainer.max_ckpt_to_keep` in the background."""
        began = time.perf_counter()
        self._saver.finish()  # Before the copy: there is never room for two in memory.
        snapshot = take()
        self._saver.begin(Save(snapshot, self._rows.position(snapshot.version)))
        if wait:
            self._saver.finish()
        return self._result(snapshot.version, time.perf_counter() - began, complete=wait)

    def check(self) -> None:
        """Raises what keeps an earlier write from being completed; called at the start of every stage."""
        self._saver.check()

    def newest(self, up_to: int) -> Found:
        """The newest complete one of version `up_to` or older."""
        self._saver.finish()
        return checkpoint.newest_complete(self._root, up_to, self._execution)

    def close(self) -> None:
        """Ends the write in progress. What cannot be written is given up: its run has ended."""
        try:
            self._saver.finish()
        except Exception:
            log.exception("run %s: version %s was not saved", self._run_id, self._saver.version)
        self._saver.close()

    def _write(self, save: Save) -> None:
        began = time.perf_counter()
        checkpoint.write_checkpoint(save, self._root, self._execution)
        self._record(save.version)
        log.info("run %s: saved version %d in %.3f s", self._run_id, save.version, time.perf_counter() - began)

    def _record(self, version: int) -> None:
        self._rows.add(version, checkpoint.checkpoint_folder(self._root, version))
        self._rows.remove(checkpoint.prune(self._root, self._config.trainer.max_ckpt_to_keep))

    def _result(self, version: int, seconds: float, complete: bool) -> CheckpointResult:
        path = str(checkpoint.checkpoint_folder(self._root, version))
        return CheckpointResult(path=path, version=version, seconds=seconds, complete=complete)
