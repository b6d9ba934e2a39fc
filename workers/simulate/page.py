"""A simulation as one HTML file: the table, the plots and the script that draws them. Opens without a network."""

from collections.abc import Sequence
from html import escape

from plotly.offline import get_plotlyjs

from ..report.page import CONFIG, STYLE
from .compare import Compared
from .plots import figures
from .table import rows

WIDE = "<style>.plots > div:nth-child(n+3) { grid-column: 1 / -1 } td, th { font-size: 13px; text-align: right } \
td:first-child { text-align: left }</style>"
"""A timeline takes the whole width."""


def render(compared: Sequence[Compared]) -> str:
    plots = [figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG) for figure in figures(compared)]
    heading, *lines = rows(compared)
    table = "<tr>" + "".join(f"<th>{escape(cell)}" for cell in heading)
    table += "".join("<tr>" + "".join(f"<td>{escape(cell)}" for cell in line) for line in lines)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Simulation</title><style>{STYLE}</style>{WIDE}"
        f"<script>{get_plotlyjs()}</script><h1>Simulation</h1><table>{table}</table>"
        f"<div class=plots>{''.join(f'<div>{plot}</div>' for plot in plots)}</div></html>"
    )
