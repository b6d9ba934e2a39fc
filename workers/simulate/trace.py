"""A run's own trace, from the store: what it generated, and what its engines, its trainer and its syncs took. Called by
the CLI for `psrl simulate --run`.

Promise: everything is measured, nothing is assumed; what the store does not tell (the time of a prefill, the size of a
KV cache) keeps its neutral value, and a scenario file may give it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from ...activities.store.reach import opened
from ...schemas.errors import DataError
from ...schemas.messages.data import Purpose
from ...schemas.stack import Stack
from ...schemas.status import SegmentKind, TrajectoryStatus
from ...schemas.tables import Group, Run, Segment, Trajectory
from ..report.rows import RunRows, read_rows
from ..report.summary import training
from .fitted import Piece, fitted

COMPLETE = (TrajectoryStatus.FINISHED, TrajectoryStatus.SCORED, TrajectoryStatus.FAILED)
"""The others were cut short: how long they would have been nobody knows."""


@dataclass(frozen=True)
class Trace:
    sections: Mapping[str, Any]
    """Of a scenario."""
    itself: str
    """How the run did, for comparison: one line."""


def recorded_by(stack: Stack, run_id: str) -> Trace:
    """Raises `RunUnknown`, `Unreachable`, or `DataError` of a run too young."""
    with opened(stack.postgres_url, stack.store_id) as store:
        rows = read_rows(store, run_id)
        with Session(store) as session:
            groups, pieces = _groups(session, run_id), _pieces(session, run_id)
            run = session.get_one(Run, run_id)
            prompt, scored_s = _prompt_tokens(session, run_id), _scored_s(session, run_id)
            psrl = dict(run.config.get("psrl", {}))
    if not groups or not rows.steps:
        raise DataError(f"run {run_id} has trained no step yet: there is nothing to replay")
    costs: dict[str, Any] = {
        "lengths": {"kind": "recorded", "groups": groups},
        "prompt_tokens": max(1, round(prompt)),
        "engine": fitted(pieces),
        "sync_s": _sync_s(rows, pieces),
        "train_s": fmean((step.published_at - step.train_started_at).total_seconds() for step in rows.steps),
        "score_s": scored_s,
        "steps": len(rows.steps),
    }
    return Trace({"psrl": psrl, "simulate": costs}, _itself(rows))


def _itself(rows: RunRows) -> str:
    waited = sum(step.waited_s for step in rows.steps)
    took = waited + sum(end - begin for begin, end in training(rows.steps))
    return f"run {rows.run_id} itself: {3600 * len(rows.steps) / took:,.1f} steps/h, trainer idle {waited / took:.0%}"


def _groups(session: Session, run_id: str) -> list[list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    asked = (
        select(Trajectory.group_id, Trajectory.tokens)
        .join(Group, (Group.run_id == Trajectory.run_id) & (Group.group_id == Trajectory.group_id))
        .where(Trajectory.run_id == run_id, Trajectory.status.in_(COMPLETE), Group.purpose == Purpose.TRAIN)
        .where(Trajectory.tokens > 0)
        .order_by(Trajectory.group_id, Trajectory.index)
    )
    for group, tokens in session.execute(asked):
        found[group].append(tokens)
    return list(found.values())


def _prompt_tokens(session: Session, run_id: str) -> float:
    mean = func.avg(func.octet_length(Group.prompt_ids)) / 4  # int32 each
    return float(session.scalar(select(mean).where(Group.run_id == run_id)) or 0)


def _scored_s(session: Session, run_id: str) -> float:
    waited = _epoch(Trajectory.scored_at) - _epoch(Trajectory.finished_at)
    return max(0.0, float(session.scalar(select(func.avg(waited)).where(Trajectory.run_id == run_id)) or 0))


def _pieces(session: Session, run_id: str) -> list[Piece]:
    asked = (
        select(
            Segment.instance, Segment.version, Segment.tokens, _epoch(Segment.started_at), _epoch(Segment.finished_at)
        )
        .where(Segment.run_id == run_id, Segment.kind == SegmentKind.SAMPLED)
        .order_by(Segment.started_at)
    )
    return [
        Piece(name, version, tokens, float(begin), float(end))
        for name, version, tokens, begin, end in session.execute(asked)
    ]


def _epoch(column: Any) -> ColumnElement[Any]:
    return func.extract("epoch", column)


def _sync_s(rows: RunRows, pieces: Sequence[Piece]) -> float:
    """From a version's publication to the first token of it on each instance, the median. It holds the wait for work,
    too, of which there is always some."""
    first: dict[tuple[str, int], float] = {}
    for piece in pieces:
        key = (piece.instance, piece.version)
        first[key] = min(piece.begin, first.get(key, piece.begin))
    published = {step.buffer + 1: step.published_at.timestamp() for step in rows.steps}
    waits = [begin - published[version] for (_, version), begin in first.items() if version in published]
    return max(0.0, median(waits)) if waits else 0.0
