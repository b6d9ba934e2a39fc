"""The checkpoints of one run: files and their rows in the store, written beside the trainer's thread.

A crash during a write loses that checkpoint and nothing else: the one before it and the stored batches, which are never
removed while their run is kept, lead to the same state.
"""

import logging
import time
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import Engine, delete
from sqlalchemy.dialects.postgresql import insert

from ...schemas.ids import RunId
from ...schemas.messages.training import CheckpointResult
from ...schemas.tables import Checkpoint
from . import checkpoint
from .position import data_position
from .runs import AdmittedRun
from .saver import Saver
from .snapshot import Snapshot, take_snapshot
from .state import TrainerState

log = logging.getLogger(__name__)


class Checkpoints:
    def __init__(self, store: Engine, root: Path, run_id: RunId, admitted: AdmittedRun, tokenizer: Any) -> None:
        self._store = store
        self._root = root / run_id
        self._run_id = run_id
        self._execution, self._config = admitted
        self._tokenizer = tokenizer
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

    def save(self, state: TrainerState, wait: bool) -> CheckpointResult:
        """Copy the state; write, record, and remove those beyond `trainer.max_ckpt_to_keep` in the background."""
        began = time.perf_counter()
        self._saver.finish()  # Before the copy: there is never room for two in memory.
        self._saver.begin(take_snapshot(state, data_position(self._store, self._run_id, state.version)))
        if wait:
            self._saver.finish()
        return self._result(state.version, time.perf_counter() - began, complete=wait)

    def check(self) -> None:
        """Raises what keeps an earlier write from being completed; called at the start of every stage."""
        self._saver.check()

    def load(self, newest: int, device: torch.device) -> checkpoint.Loaded:
        """The newest complete one of version `newest` or older."""
        self._saver.finish()
        return checkpoint.load_newest(self._root, newest, self._execution, self._config, device)

    def close(self) -> None:
        """Ends the write in progress. What cannot be written is given up: its run has ended."""
        try:
            self._saver.finish()
        except Exception:
            log.exception("run %s: version %s was not saved", self._run_id, self._saver.version)
        self._saver.close()

    def _write(self, snapshot: Snapshot) -> None:
        began = time.perf_counter()
        checkpoint.write_checkpoint(snapshot, self._tokenizer, self._root, self._execution)
        self._record(snapshot.version)
        log.info("run %s: saved version %d in %.3f s", self._run_id, snapshot.version, time.perf_counter() - began)

    def _record(self, version: int) -> None:
        path = str(checkpoint.checkpoint_folder(self._root, version))
        row = {"run_id": self._run_id, "version": version, "path": path}
        with self._store.begin() as connection:
            connection.execute(insert(Checkpoint).values(row).on_conflict_do_nothing())
        removed = checkpoint.prune(self._root, self._config.trainer.max_ckpt_to_keep)
        with self._store.begin() as connection:
            connection.execute(
                delete(Checkpoint).where(Checkpoint.run_id == self._run_id, Checkpoint.version.in_(removed))
            )

    def _result(self, version: int, seconds: float, complete: bool) -> CheckpointResult:
        path = str(checkpoint.checkpoint_folder(self._root, version))
        return CheckpointResult(path=path, version=version, seconds=seconds, complete=complete)
