"""The rows of a run's checkpoints, and the position in the data that each of them holds."""

from pathlib import Path

from sqlalchemy import Engine, delete
from sqlalchemy.dialects.postgresql import insert

from ...schemas.ids import RunId
from ...schemas.messages.training import DataPosition
from ...schemas.tables import Checkpoint
from .position import data_position


class StoredCheckpointRows:
    def __init__(self, store: Engine, run_id: RunId) -> None:
        self._store = store
        self._run_id = run_id

    def position(self, version: int) -> DataPosition:
        return data_position(self._store, self._run_id, version)

    def add(self, version: int, path: Path) -> None:
        row = {"run_id": self._run_id, "version": version, "path": str(path)}
        with self._store.begin() as connection:
            connection.execute(insert(Checkpoint).values(row).on_conflict_do_nothing())

    def remove(self, versions: list[int]) -> None:
        chosen = (Checkpoint.run_id == self._run_id) & Checkpoint.version.in_(versions)
        with self._store.begin() as connection:
            connection.execute(delete(Checkpoint).where(chosen))
