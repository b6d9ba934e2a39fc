"""The checkpoints of one run: files and their rows in the store."""

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
from .runs import AdmittedRun
from .state import TrainerState


class Checkpoints:
    def __init__(self, store: Engine, root: Path, run_id: RunId, admitted: AdmittedRun) -> None:
        self._store = store
        self._root = root / run_id
        self._run_id = run_id
        self._execution, self._config = admitted

    def find(self, version: int) -> CheckpointResult | None:
        """The complete checkpoint of `version`, if there is one; its row is made good if it is missing."""
        folder = checkpoint.checkpoint_folder(self._root, version)
        if not checkpoint.is_complete(folder, self._execution):
            return None
        return self._recorded(folder, version, seconds=0.0)

    def write(self, state: TrainerState, tokenizer: Any) -> CheckpointResult:
        """Save, record, and remove those beyond `trainer.max_ckpt_to_keep`."""
        began = time.perf_counter()
        folder = checkpoint.write_checkpoint(state, tokenizer, self._root, self._execution)
        return self._recorded(folder, state.version, time.perf_counter() - began)

    def load(self, newest: int, device: torch.device) -> TrainerState | None:
        """The newest complete one of version `newest` or older."""
        return checkpoint.load_newest(self._root, newest, self._execution, self._config, device)

    def _recorded(self, folder: Path, version: int, seconds: float) -> CheckpointResult:
        row = {"run_id": self._run_id, "version": version, "path": str(folder)}
        with self._store.begin() as connection:
            connection.execute(insert(Checkpoint).values(row).on_conflict_do_nothing())
        removed = checkpoint.prune(self._root, self._config.trainer.max_ckpt_to_keep)
        with self._store.begin() as connection:
            connection.execute(
                delete(Checkpoint).where(Checkpoint.run_id == self._run_id, Checkpoint.version.in_(removed))
            )
        return CheckpointResult(path=str(folder), version=version, seconds=seconds)
