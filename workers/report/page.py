"""The report as one HTML file: plots, numbers and the script that draws them. Opens without a network."""

from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from ..whole import write_whole
from .plots import figures
from .rows import RunRows
from .summary import RunSummary, averaged

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 2em auto; padding: 0 1em }
h1 { margin-bottom: 0 } .sub { color: #667 } table { border-collapse: collapse; margin: 1.5em 0 }
td { padding: .25em 1.5em .25em 0; border-bottom: 1px solid #e5e8ec } td + td { font-variant-numeric: tabular-nums }
.plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1em }
@media (max-width: 900px) { .plots { grid-template-columns: minmax(0, 1fr) } }
.plots > div { min-width: 0; overflow: hidden }
.bad { color: #b3261e }
"""

CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}


def write_page(rows: RunRows, summary: RunSummary, file: Path) -> None:
    write_whole(render(rows, summary), file)


def render(rows: RunRows, summary: RunSummary) -> str:
    plots = [
        figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG) for figure in figures(rows, summary)
    ]
    reason = f"<p class=bad>{escape(rows.reason)}</p>" if rows.reason else ""
    facts = "".join(f"<tr><td>{escape(name)}<td>{escape(value)}" for name, value in facts_of(summary))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(rows.run_id)}</title><style>{STYLE}</style>"
        f"<script>{get_plotlyjs()}</script>"
        f"<h1>{escape(rows.run_id)}</h1><div class=sub>{escape(rows.project)} · {escape(rows.phase)} · "
        f"{rows.created_at:%Y-%m-%d %H:%M %Z}</div>{reason}<table>{facts}</table>"
        f"<div class=plots>{''.join(f'<div>{plot}</div>' for plot in plots)}</div></html>"
    )


def facts_of(summary: RunSummary) -> list[tuple[str, str]]:
    """Name and value, for the page and for the terminal."""
    split, queue = summary.time_split, summary.queue
    histogram = ", ".join(f"{age}: {groups}" for age, groups in summary.staleness_histogram.items())
    return [
        (f"reward, {averaged(summary.steps)}", f"{number(summary.reward_first)} → {number(summary.reward_last)}"),
        ("validation, before and after", f"{number(summary.validation_before)} → {number(summary.validation_after)}"),
        ("steps", f"{summary.steps} of {summary.total_steps}"),
        ("trained trajectories, tokens", f"{summary.trajectories:,}, {summary.tokens:,}"),
        ("staleness: groups", histogram or "–"),
        (
            "staleness per token, mean and least",
            f"{number(summary.token_staleness_mean, 2)}, {whole(summary.token_staleness_min)}",
        ),
        ("complete groups when a batch was taken, mean", number(queue.depth_mean, 1)),
        (
            "a complete group waited for its batch, mean and longest",
            f"{seconds(queue.group_waited_mean_s)}, {seconds(queue.group_waited_max_s)}",
        ),
        (
            "the trainer waited for a batch, mean and longest",
            f"{seconds(queue.trainer_waited_mean_s)}, {seconds(queue.trainer_waited_max_s)}",
        ),
        ("engines generated while the trainer was busy", share(summary.overlap_share)),
        ("trainer idle", share(summary.trainer_idle_share)),
        (
            "engine against trainer",
            "–" if summary.engine_gap_mean_abs is None else f"{summary.engine_gap_mean_abs:.1e}",
        ),
        ("untrainable tokens", f"{summary.untrainable_tokens:,}"),
        ("wall time", seconds(summary.wall_s)),
        (
            "start, wait, train, publish, other",
            ", ".join(
                seconds(spent) for spent in (split.start_s, split.wait_s, split.train_s, split.publish_s, split.other_s)
            ),
        ),
        ("engines generated for", seconds(split.generate_s)),
    ]


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def whole(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
