"""The metrics of a run as TensorBoard events. Uses TensorBoard's own writer: no torch needed."""

from collections.abc import Iterator
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ...schemas.messages.run import StepReport
from .rows import RunRows


def write_events(rows: RunRows, folder: Path) -> int:
    """One event file in `folder/RUN`; how many values it holds. An earlier export of the run is replaced."""
    target = folder / rows.run_id
    for old in target.glob("events.out.tfevents.*"):
        old.unlink()
    writer = EventFileWriter(str(target))
    count = 0
    for step in rows.steps:
        for tag, value in scalars(step):
            writer.add_event(_event(tag, value, step.buffer, step.published_at.timestamp()))
            count += 1
    for item in rows.evaluations:
        if item.accuracy is not None:
            writer.add_event(_event("validation/accuracy", item.accuracy, item.version, rows.created_at.timestamp()))
            count += 1
    writer.close()
    return count


def scalars(step: StepReport) -> Iterator[tuple[str, float]]:
    """Every number of a step, as `stage/name`."""
    for stage in ("batch", "log_probs", "advantages", "update", "publish"):
        for name, value in getattr(step, stage).model_dump(exclude={"schema_version"}).items():
            if isinstance(value, int | float):
                yield f"{stage}/{name}", float(value)
    for name, value in step.batch.reward_metrics.items():
        yield f"reward/{name}", value
    groups = step.batch.staleness
    if total := sum(groups.values()):
        yield "batch/staleness_mean", sum(age * count for age, count in groups.items()) / total
    if step.queue_depth:
        yield "queue/depth", float(step.queue_depth)
    yield "time/waited_s", step.waited_s
    yield "time/train_s", (step.published_at - step.train_started_at).total_seconds()


def _event(tag: str, value: float, step: int, at: float) -> Event:
    return Event(wall_time=at, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
