"""The plots of a report, one function each: what is on the axes, and nothing else."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from .rows import RunRows
from .summary import RunSummary, intersection_s

ENGINE, TRAINER, WAITING, PUBLISHING = "#2a7f9e", "#d9822b", "#c5cbd3", "#7a5195"


def figures(rows: RunRows, summary: RunSummary) -> list[Any]:
    made = [
        *(_reward(rows), _metrics(rows), _validation(rows), _staleness(summary), _token_staleness(rows)),
        *(_lengths(rows), _gap(rows), _times(rows), _waiting(rows), _depth(rows)),
    ]
    return [figure for figure in made if figure is not None]


def blank(title: str, x: str, y: str) -> Any:
    """A figure in the style of all of them, with nothing drawn yet."""
    figure = go.Figure()
    figure.update_layout(
        title=title,
        xaxis_title=x,
        yaxis_title=y,
        template="plotly_white",
        height=340,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
        legend={"orientation": "h", "y": 1.12, "x": 1, "xanchor": "right"},
    )
    return figure


def _reward(rows: RunRows) -> Any:
    steps = [step.buffer for step in rows.steps]
    means = [step.batch.reward_mean for step in rows.steps]
    smooth = [sum(means[max(0, i - 9) : i + 1]) / len(means[max(0, i - 9) : i + 1]) for i in range(len(means))]
    figure = blank("Reward", "step", "mean reward of the batch")
    figure.add_scatter(x=steps, y=means, mode="lines+markers", name="per step", line_color=WAITING)
    figure.add_scatter(x=steps, y=smooth, mode="lines", name="mean of ten", line_color=TRAINER, line_width=3)
    return figure


def _metrics(rows: RunRows) -> Any:
    """What the reward function returned beside the reward."""
    names = sorted({name for step in rows.steps for name in step.batch.reward_metrics})
    if not names:
        return None
    figure = blank("Reward metrics", "step", "mean of the batch")
    steps = [step.buffer for step in rows.steps]
    for name in names:
        values = [step.batch.reward_metrics.get(name) for step in rows.steps]
        figure.add_scatter(x=steps, y=values, mode="lines", name=name)
    return figure


def _validation(rows: RunRows) -> Any:
    measured = [item for item in rows.evaluations if item.accuracy is not None]
    if not measured:
        return None
    figure = blank("Validation", "version", "mean reward of the validation answers")
    figure.add_scatter(
        x=[item.version for item in measured],
        y=[item.accuracy for item in measured],
        mode="lines+markers",
        line_color=TRAINER,
    )
    return figure


def _staleness(summary: RunSummary) -> Any:
    figure = blank("Staleness of the trained groups", "buffer minus version tag", "groups")
    figure.add_bar(
        x=list(summary.staleness_histogram), y=list(summary.staleness_histogram.values()), marker_color=ENGINE
    )
    figure.update_xaxes(dtick=1)
    return figure


def _token_staleness(rows: RunRows) -> Any:
    return _per_step(
        blank("Staleness of the trained tokens", "step", "buffer minus version of the token"),
        rows,
        [
            ("mean", [step.batch.token_staleness_mean for step in rows.steps], ENGINE),
            ("least", [step.batch.token_staleness_min for step in rows.steps], WAITING),
        ],
    )


def _waiting(rows: RunRows) -> Any:
    return _per_step(
        blank("Waiting between generation and training", "step", "seconds"),
        rows,
        [
            ("complete groups, mean", [step.batch.group_waited_mean_s for step in rows.steps], ENGINE),
            ("complete groups, longest", [step.batch.group_waited_max_s for step in rows.steps], WAITING),
            ("the trainer", [step.waited_s for step in rows.steps], TRAINER),
        ],
    )


def _depth(rows: RunRows) -> Any:
    return _per_step(
        blank("Complete groups when the batch was taken", "step", "groups"),
        rows,
        [("complete", [step.queue_depth or None for step in rows.steps], ENGINE)],
    )


def _per_step(figure: Any, rows: RunRows, lines: Sequence[tuple[str, Sequence[float | None], str]]) -> Any:
    """One line each; a step that was not measured is a gap in it. No figure when nothing was."""
    measured = [line for line in lines if any(value is not None for value in line[1])]
    for name, values, colour in measured:
        steps = [step.buffer for step in rows.steps]
        figure.add_scatter(x=steps, y=list(values), mode="lines", name=name, line_color=colour)
    return figure if measured else None


def _lengths(rows: RunRows) -> Any:
    figure = blank("Response length", "step", "mean tokens")
    figure.add_scatter(
        x=[step.buffer for step in rows.steps],
        y=[step.batch.response_tokens_mean for step in rows.steps],
        mode="lines",
        line_color=ENGINE,
    )
    return figure


def _gap(rows: RunRows) -> Any:
    figure = blank("Log-prob gap between engine and trainer", "step", "|difference|")
    steps = [step.buffer for step in rows.steps]
    for name, values, colour in (
        ("engine, mean", [step.log_probs.engine_gap_mean_abs for step in rows.steps], ENGINE),
        ("with what was learnt since, mean", [step.log_probs.gap_mean_abs for step in rows.steps], TRAINER),
        ("largest", [step.log_probs.gap_max_abs for step in rows.steps], WAITING),
    ):
        figure.add_scatter(x=steps, y=values, mode="lines", name=name, line_color=colour)
    figure.update_yaxes(type="log", exponentformat="e")
    return figure


def _times(rows: RunRows) -> Any:
    """Stacked: what the trainer did in each step. Beside it, how long engines generated in the same time."""
    figure = blank("Time per step", "step", "seconds")
    steps = [step.buffer for step in rows.steps]
    publish = [step.publish.seconds for step in rows.steps]
    busy = [(step.published_at - step.train_started_at).total_seconds() for step in rows.steps]
    trained = [max(0.0, total - written) for total, written in zip(busy, publish, strict=True)]
    for name, values, colour in (
        ("wait", [step.waited_s for step in rows.steps], WAITING),
        ("train", trained, TRAINER),
        ("publish", publish, PUBLISHING),
    ):
        figure.add_bar(x=steps, y=values, name=name, marker_color=colour)
    figure.add_scatter(x=steps, y=_generating_per_step(rows), mode="lines", name="generate", line_color=ENGINE)
    figure.update_layout(barmode="stack")
    return figure


def _generating_per_step(rows: RunRows) -> list[float]:
    spans = [(step.train_started_at.timestamp() - step.waited_s, step.published_at.timestamp()) for step in rows.steps]
    return [intersection_s([span], rows.generating) for span in spans]
