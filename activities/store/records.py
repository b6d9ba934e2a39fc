"""What a run did, for reports: steps, validation rounds, its phase."""

import json
import logging

from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from ...schemas.messages.data import ReopenRun
from ...schemas.messages.run import EvaluationReport, RunPhase, RunStatus, StepReport
from ...schemas.tables import EvaluationResult, Run, StepMetric
from ...schemas.text import MAX_REASON, storable

log = logging.getLogger(__name__)

FINAL = (RunPhase.DONE, RunPhase.STOPPED, RunPhase.FAILED)


async def store_step(store: AsyncEngine, report: StepReport) -> None:
    """Idempotent by (run, buffer)."""
    values = {
        # Through JSON text, in which a number that is not finite is spelled "NaN": PostgreSQL's JSON has none.
        "metrics": json.loads(report.model_dump_json()),
        "train_started_at": report.train_started_at,
        "published_at": report.published_at,
    }
    statement = insert(StepMetric).values(run_id=report.run_id, buffer=report.buffer, **values)
    async with store.begin() as connection:
        await connection.execute(
            statement.on_conflict_do_update(index_elements=[StepMetric.run_id, StepMetric.buffer], set_=values)
        )


async def store_evaluation(store: AsyncEngine, report: EvaluationReport) -> None:
    """Idempotent by (run, version)."""
    values = {"accuracy": report.accuracy, "scored": report.scored, "failed": report.failed}
    statement = insert(EvaluationResult).values(run_id=report.run_id, version=report.version, **values)
    async with store.begin() as connection:
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=[EvaluationResult.run_id, EvaluationResult.version], set_=values
            )
        )


async def reopen_run(store: AsyncEngine, request: ReopenRun) -> None:
    """An ended run is resumed, perhaps with other data than before. Idempotent."""
    admission = request.admission.model_dump(mode="json", exclude={"schema_version", "config"})
    values = {**admission, "phase": RunPhase.STARTING.value, "reason": "", "finished_at": None}
    if request.first_epoch is not None:
        values["first_epoch"] = request.first_epoch
    if request.workflow_run_id:
        values["workflow_run_id"] = request.workflow_run_id
    async with store.begin() as connection:
        await connection.execute(update(Run).where(Run.run_id == request.run_id).values(values))


async def store_run(store: AsyncEngine, status: RunStatus) -> None:
    """A finished run keeps its record: a second run that was refused because of its id must not overwrite it. A run
    that failed before its row was written has nothing to record."""
    final = status.phase in FINAL
    statement = (
        update(Run)
        .where(Run.run_id == status.run_id, Run.finished_at.is_(None))
        .values(
            phase=status.phase.value,
            reason=storable(status.reason, MAX_REASON),
            finished_at=func.now() if final else None,
        )
    )
    async with store.begin() as connection:
        changed = (await connection.execute(statement)).rowcount
    if not changed:
        log.warning("run %s is %s, not recorded: no unfinished run of this id", status.run_id, status.phase)
