"""The numbers of a report: plain arithmetic over `RunRows`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from ...schemas.messages.run import StepReport
from .rows import Interval, RunRows

Number = TypeVar("Number", int, float)

ENDS = 10
"""Steps at each end of a run whose rewards are averaged: one step's mean is noisy."""

INITIAL = 0
"""The version a run begins with, also when it is resumed."""


class TimeSplit(BaseModel):
    """Where the wall time went. The trainer is always in one of start, wait, train, publish or other, which add up to
    the wall time; `generate` is what the engines did meanwhile."""

    model_config = ConfigDict(frozen=True)

    start_s: float
    """Until the trainer first waited for a batch: checks, loading the model, starting the engines."""
    wait_s: float
    """The trainer waited for a batch."""
    train_s: float
    """Log-probs, advantages, update."""
    publish_s: float
    """The new version is written and announced."""
    other_s: float
    """The rest: bookkeeping between steps, checkpoints, the last validation."""
    generate_s: float
    """At least one engine generated."""


class Queue(BaseModel):
    """What lies between generation and training, by three measures that say different things: a deep queue means that
    generation is ahead, groups that wait long are trained on stale, and a trainer that waits is starved. Null where the
    run has no step that measured it."""

    model_config = ConfigDict(frozen=True)

    depth_mean: float | None
    """Complete groups when a batch was taken, its own included: mean over steps."""
    group_waited_mean_s: float | None
    """From a group's last score to the batch that took it: mean over trained groups."""
    group_waited_max_s: float | None
    trainer_waited_mean_s: float | None
    """From the end of a step to the next batch: mean over steps."""
    trainer_waited_max_s: float | None


class RunSummary(BaseModel):
    """What `psrl report --json` prints."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    phase: str
    reason: str
    reward_first: float | None
    """Mean over the first ten steps, or as many as there are."""
    reward_last: float | None
    """Mean over the last ten steps, or as many as there are."""
    validation_before: float | None
    """Of the version the run began with. None when that was not validated."""
    validation_after: float | None
    """Of the newest version that was validated and had been trained."""
    steps: int
    total_steps: int
    trajectories: int
    """Trained on."""
    tokens: int
    """Trained on."""
    staleness_histogram: dict[int, int]
    """Buffer minus version tag, in versions, to groups."""
    token_staleness_min: int | None
    """Buffer minus the version that sampled the token: of the freshest trained token of all."""
    token_staleness_mean: float | None
    """Over all trained tokens."""
    queue: Queue
    overlap_share: float | None
    """Share of the trainer's busy time during which an engine generated."""
    trainer_idle_share: float | None
    """Share of the time from the first wait to the last publication that the trainer waited."""
    engine_gap_mean_abs: float | None
    """Engine against trainer under the same weights: mean over steps of the mean |log-prob difference|."""
    logprob_gap_mean_abs: float | None
    """Old against sampled log-probs: also holds what the policy learnt in between."""
    untrainable_tokens: int
    wall_s: float
    time_split: TimeSplit


def summarize(rows: RunRows) -> RunSummary:
    steps = rows.steps
    rewards = [step.batch.reward_mean for step in steps]
    validated = {item.version: item.accuracy for item in rows.evaluations if item.accuracy is not None}
    before = validated.pop(INITIAL, None)
    waited = sum(step.waited_s for step in steps)
    busy = sum(end - begin for begin, end in training(steps))
    return RunSummary(
        run_id=rows.run_id,
        phase=rows.phase,
        reason=rows.reason,
        reward_first=mean(rewards[:ENDS]),
        reward_last=mean(rewards[-ENDS:]),
        validation_before=before,
        validation_after=validated[max(validated)] if validated else None,
        steps=len(steps),
        total_steps=rows.total_steps,
        trajectories=rows.trained_trajectories,
        tokens=sum(step.batch.tokens for step in steps),
        staleness_histogram=staleness(steps),
        token_staleness_min=min(_known(step.batch.token_staleness_min for step in steps), default=None),
        token_staleness_mean=_weighted((step.batch.token_staleness_mean, step.batch.tokens) for step in steps),
        queue=_queue(steps),
        overlap_share=_overlap_share(steps, rows.generating),
        trainer_idle_share=waited / (waited + busy) if waited + busy > 0 else None,
        engine_gap_mean_abs=mean(
            [s.log_probs.engine_gap_mean_abs for s in steps if s.log_probs.engine_gap_mean_abs is not None]
        ),
        logprob_gap_mean_abs=mean([step.log_probs.gap_mean_abs for step in steps]),
        untrainable_tokens=sum(step.log_probs.untrainable_tokens for step in steps),
        wall_s=_end(rows) - rows.created_at.timestamp(),
        time_split=_time_split(rows),
    )


def averaged(steps: int) -> str:
    """What the two rewards are means of, in a run of so many steps."""
    if steps >= 2 * ENDS:
        return "first and last ten steps"
    if steps > ENDS:
        return f"first and last ten of {steps} steps"
    return {0: "no step", 1: "of its only step"}.get(steps, f"each of all {steps} steps")


def mean(values: Sequence[float]) -> float | None:
    """None for no values: a missing number is not 0."""
    return sum(values) / len(values) if values else None


def _known(values: Iterable[Number | None]) -> list[Number]:
    return [value for value in values if value is not None]


def _weighted(values: Iterable[tuple[float | None, int]]) -> float | None:
    """The mean of what was measured, each value as often as its weight says."""
    measured = [(value, weight) for value, weight in values if value is not None and weight]
    total = sum(weight for _, weight in measured)
    return sum(value * weight for value, weight in measured) / total if total else None


def _queue(steps: Sequence[StepReport]) -> Queue:
    waited = [step.waited_s for step in steps]
    return Queue(
        depth_mean=mean([step.queue_depth for step in steps if step.queue_depth]),
        group_waited_mean_s=_weighted((step.batch.group_waited_mean_s, step.batch.groups) for step in steps),
        group_waited_max_s=max(_known(step.batch.group_waited_max_s for step in steps), default=None),
        trainer_waited_mean_s=mean(waited),
        trainer_waited_max_s=max(waited, default=None),
    )


def staleness(steps: Iterable[StepReport]) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for step in steps:
        counts.update(step.batch.staleness)
    return dict(sorted(counts.items()))


def training(steps: Iterable[StepReport]) -> list[Interval]:
    """When the trainer was busy: disjoint, in order, since steps follow each other."""
    return [(step.train_started_at.timestamp(), step.published_at.timestamp()) for step in steps]


def intersection_s(left: Sequence[Interval], right: Sequence[Interval]) -> float:
    """Seconds that lie in both; each side disjoint and in order."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return total


def _overlap_share(steps: Sequence[StepReport], generating: Sequence[Interval]) -> float | None:
    busy = training(steps)
    total = sum(end - begin for begin, end in busy)
    return intersection_s(busy, generating) / total if total > 0 else None


def _time_split(rows: RunRows) -> TimeSplit:
    created, wall = rows.created_at.timestamp(), _end(rows) - rows.created_at.timestamp()
    start = wall
    if rows.steps:
        first = rows.steps[0]
        start = max(0.0, first.train_started_at.timestamp() - first.waited_s - created)
    wait = sum(step.waited_s for step in rows.steps)
    busy = sum(end - begin for begin, end in training(rows.steps))
    publish = min(busy, sum(step.publish.seconds for step in rows.steps))
    return TimeSplit(
        start_s=start,
        wait_s=wait,
        train_s=busy - publish,
        publish_s=publish,
        other_s=max(0.0, wall - start - wait - busy),
        generate_s=sum(end - begin for begin, end in rows.generating),
    )


def _end(rows: RunRows) -> float:
    """When the run ended; while it runs, its newest sign of life."""
    if rows.finished_at is not None:
        return rows.finished_at.timestamp()
    signs = [rows.created_at.timestamp()]
    signs += [end for _, end in rows.generating[-1:]]
    signs += [step.published_at.timestamp() for step in rows.steps[-1:]]
    return max(signs)
