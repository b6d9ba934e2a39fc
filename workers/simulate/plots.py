"""The plots of a simulation, one function each: what is on the axes, and nothing else."""

from collections.abc import Sequence
from typing import Any

from ..report.plots import ENGINE, TRAINER, WAITING, blank
from .compare import Compared


def figures(compared: Sequence[Compared]) -> list[Any]:
    return [_speed(compared), _staleness(compared), *map(timeline, compared)]


def _speed(compared: Sequence[Compared]) -> Any:
    figure = blank("Speed", "", "times the first")
    figure.add_bar(
        x=[one.result.name for one in compared], y=[one.times_first for one in compared], marker_color=ENGINE
    )
    return figure


def _staleness(compared: Sequence[Compared]) -> Any:
    figure = blank("Staleness of the trained groups", "buffer minus version tag", "share of the groups")
    for one in compared:
        ages = one.result.staleness
        shares = [groups / one.result.groups_trained for groups in ages.values()]
        figure.add_bar(x=list(ages), y=shares, name=one.result.name)
    figure.update_xaxes(dtick=1)
    return figure


def timeline(one: Compared) -> Any:
    """A lane per instance, as high as the share of its slots that run; grey where it takes up a version. Below them the
    trainer, with the number of the step that it trains."""
    shown, end = one.timeline, one.timeline.end
    lanes = one.scenario.instances
    figure = blank(f"{one.result.name}: steps {shown.first} to {shown.last}", "seconds", "")
    slots = one.scenario.psrl.rollout_coordination.routing_strategy.max_concurrent_seqs_per_instance
    top = max((running for lane in shown.batches for _, running in lane), default=0)
    scale = 0.85 / max(1, min(slots, top))
    for lane in range(lanes):
        steps = [(max(at, shown.begin), running) for at, running in shown.batches[lane] if at <= end]
        times = [at for at, _ in steps] + [end]
        heights = [lane + running * scale for _, running in steps]
        floor = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(x=[times[0], end], y=[lane, lane], **floor)
        figure.add_scatter(
            x=times,
            y=[*heights, heights[-1]],
            mode="lines",
            line={"shape": "hv", "width": 1, "color": ENGINE},
            fill="tonexty",
            name="running",
            showlegend=lane == 0,
        )
        for begin, until in shown.syncs[lane]:
            if until > shown.begin and begin < end:
                figure.add_shape(
                    type="rect", x0=begin, x1=until, y0=lane, y1=lane + 0.85, fillcolor=WAITING, line_width=0
                )
    for begin, until, step in shown.spans:
        figure.add_shape(type="rect", x0=begin, x1=until, y0=-1, y1=-0.15, fillcolor=TRAINER, line_width=0)
        figure.add_annotation(x=until, y=-0.55, text=str(step), showarrow=False, xanchor="left", font={"size": 10})
    names = [f"rollout-{lane}" for lane in range(lanes)]
    figure.update_yaxes(tickvals=[-0.6, *(lane + 0.4 for lane in range(lanes))], ticktext=["trainer", *names])
    figure.update_layout(height=140 + 34 * (lanes + 1))
    return figure
