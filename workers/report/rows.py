"""What a report reads from the store. Small even for a long run: one row per step and validation round, and the times
of generation already merged by the database."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from ...activities.store.literals import listed
from ...schemas.errors import RunUnknown, nearest
from ...schemas.messages.run import StepReport
from ...schemas.status import SegmentKind
from ...schemas.tables import BatchMember, EvaluationResult, Run, StepMetric

Interval = tuple[float, float]
"""Begin and end in seconds since the epoch."""


@dataclass(frozen=True)
class Evaluated:
    version: int
    accuracy: float | None


@dataclass(frozen=True)
class RunRows:
    """Everything a report needs to know of one run."""

    run_id: str
    phase: str
    reason: str
    project: str
    total_steps: int
    created_at: datetime
    finished_at: datetime | None
    steps: tuple[StepReport, ...]
    """In order of the buffers."""
    evaluations: tuple[Evaluated, ...]
    """In order of the versions."""
    trained_trajectories: int
    generating: tuple[Interval, ...]
    """When at least one training or validation segment was in progress: disjoint, in order."""


def read_rows(store: Engine, run_id: str) -> RunRows:
    """Raises `RunUnknown`."""
    with Session(store) as session:
        return _read(session, run_id)


def _read(session: Session, run_id: str) -> RunRows:
    run = session.get(Run, run_id)
    if run is None:
        known = session.scalars(select(Run.run_id).order_by(Run.created_at.desc()).limit(20)).all()
        raise RunUnknown(
            f"no run {run_id!r} in the store{nearest(run_id, known)}; known: {', '.join(known) or 'none yet'}"
        )
    metrics = session.scalars(select(StepMetric).where(StepMetric.run_id == run_id).order_by(StepMetric.buffer))
    rounds = session.scalars(
        select(EvaluationResult).where(EvaluationResult.run_id == run_id).order_by(EvaluationResult.version)
    )
    trained = session.scalar(select(func.count()).select_from(BatchMember).where(BatchMember.run_id == run_id))
    return RunRows(
        run_id=run_id,
        phase=run.phase,
        reason=run.reason,
        project=str(run.config.get("trainer", {}).get("project_name", "")),
        total_steps=run.total_steps,
        created_at=run.created_at,
        finished_at=run.finished_at,
        steps=tuple(StepReport.model_validate(row.metrics) for row in metrics),
        evaluations=tuple(Evaluated(row.version, row.accuracy) for row in rounds),
        trained_trajectories=trained or 0,
        generating=_generating(session, run_id),
    )


def _generating(session: Session, run_id: str) -> tuple[Interval, ...]:
    """The union of all segments' times, made by the database: a run has one row per step, but thousands of segments."""
    merged = text(
        "SELECT extract(epoch FROM lower(span)), extract(epoch FROM upper(span)) FROM ("
        " SELECT unnest(range_agg(tstzrange(started_at, finished_at, '[]'))) AS span"
        f" FROM segments WHERE run_id = :run_id AND kind = {listed(SegmentKind.SAMPLED)}) AS spans ORDER BY 1"
    )
    return tuple((float(begin), float(end)) for begin, end in session.execute(merged, {"run_id": run_id}))
