"""The audit of one run. Used by `psrl audit`, by tests and by the chaos driver; may run while the run does.

All rows are read in one read-only snapshot, so that what is compared belongs together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, text

from ...activities.store.branches import episodes_of
from ...schemas.config import PsrlSection
from ...schemas.errors import RunUnknown, nearest
from ...schemas.ids import RunId
from ...schemas.messages.data import Purpose
from ...schemas.messages.run import RunPhase
from ...schemas.tables import Run
from .bound import bound
from .check import AuditedRun, Check
from .once import once
from .rewards import rewards
from .tokens import prefix, tokens
from .turns import answers
from .versions import immutable, published_versions

SNAPSHOT = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
    # Every rule reads a whole run, but a planner whose statistics lag behind may take it for a few rows, and then goes
    # through one table for every row of another.
    "SET LOCAL enable_nestloop = off",
    "SET LOCAL jit = off",
    "SET LOCAL work_mem = '64MB'",
)


@dataclass(frozen=True)
class Audit:
    run_id: RunId
    phase: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def audit(connection: Connection, run_id: RunId, weights: Path | None = None) -> Audit:
    """On a connection without a transaction. `weights` is the stack's folder of versions; null, or a folder
    that is not on this machine, leaves files unchecked. Raises `RunUnknown`."""
    with _snapshot(connection):
        run = _open(connection, run_id)
        published = published_versions(run)
        before = [bound(run), once(run), tokens(run), prefix(run), answers(run)]
        after = rewards(run)
    with connection.begin():
        versions = immutable(connection, run_id, published, run.phase == RunPhase.DONE, weights)
    return Audit(run_id, run.phase, (*before, versions, after))


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    with connection.begin():
        for statement in SNAPSHOT:
            connection.execute(text(statement))
        yield


def _open(connection: Connection, run_id: RunId) -> AuditedRun:
    row = connection.execute(select(Run.__table__).where(Run.run_id == run_id)).one_or_none()
    if row is None:
        known = connection.scalars(select(Run.run_id).order_by(Run.created_at.desc()).limit(20)).all()
        raise RunUnknown(
            f"no run {run_id!r} in the store{nearest(run_id, known)}; known: {', '.join(known) or 'none yet'}"
        )
    psrl = PsrlSection.model_validate(row.config["psrl"])
    limits: dict[str, Any] = {
        "eta": psrl.staleness,
        "members": psrl.rollout_n,
        "offered": episodes_of(row.config, Purpose.TRAIN),
        "validated": episodes_of(row.config, Purpose.VALIDATION),
        "batch_groups": psrl.staleness_buffer_entries,
        "budget": row.config["data"]["max_response_length"],
        "prompts": row.prompts,
        "first_epoch": row.first_epoch,
        "total_steps": row.total_steps,
    }
    parameters = {"run": row.run_id, "phase": row.phase, **limits}
    return AuditedRun(connection, run_id, row.phase, row.refused_results, parameters)
