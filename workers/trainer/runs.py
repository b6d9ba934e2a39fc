"""What the trainer must know of a run: its configuration, and whether it still goes on."""

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


def admitted_run(store: Engine, run_id: RunId) -> AdmittedRun:
    """Raises `RunUnknown`."""
    with store.connect() as connection:
        row = connection.execute(select(Run.workflow_run_id, Run.config).where(Run.run_id == run_id)).one_or_none()
    if row is None:
        raise RunUnknown(f"run {run_id!r} is not in the store; runs are admitted before their trainer is opened")
    return AdmittedRun(row.workflow_run_id, parse_config(row.config))


def run_ended(store: Engine, run_id: RunId) -> bool:
    """True also when the store no longer knows the run."""
    with store.connect() as connection:
        phase = connection.execute(select(Run.phase).where(Run.run_id == run_id)).scalar_one_or_none()
    return phase is None or phase in ENDED
