"""What the trainer must know of a run: its configuration, and whether it has ended."""

from typing import NamedTuple

from sqlalchemy import Engine, select

from ...schemas.config import RunConfig, parse_config
from ...schemas.errors import RunUnknown
from ...schemas.ids import RunId
from ...schemas.messages.run import RunPhase
from ...schemas.tables import Run

ENDED = (RunPhase.DONE, RunPhase.STOPPED, RunPhase.FAILED)


class AdmittedRun(NamedTuple):
    execution: str
    """Id of the run's first workflow execution: another run of the same name has another one."""
    config: RunConfig


class StoredRuns:
    def __init__(self, store: Engine) -> None:
        self._store = store

    def admitted(self, run_id: RunId) -> AdmittedRun:
        """Raises `RunUnknown`."""
        query = select(Run.workflow_run_id, Run.config).where(Run.run_id == run_id)
        with self._store.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise RunUnknown(f"run {run_id!r} is not in the store; runs are admitted before their trainer is opened")
        return AdmittedRun(row.workflow_run_id, parse_config(row.config))

    def ended(self, run_id: RunId) -> bool:
        """True also when the store no longer knows the run."""
        with self._store.connect() as connection:
            phase = connection.execute(select(Run.phase).where(Run.run_id == run_id)).scalar_one_or_none()
        return phase is None or phase in ENDED
