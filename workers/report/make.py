"""From a stack and a run's name to its report: the one entry for the CLI."""

from pathlib import Path

from ...activities.store.reach import opened
from ...schemas.stack import Stack
from .rows import RunRows, read_rows
from .summary import RunSummary, summarize


def load(stack: Stack, run_id: str) -> tuple[RunRows, RunSummary]:
    """Raises `RunUnknown` or `Unreachable`."""
    with opened(stack.postgres_url, stack.store_id) as store:
        rows = read_rows(store, run_id)
    return rows, summarize(rows)


def page_path(stack: Stack, run_id: str) -> Path:
    """Where the page goes unless the user says otherwise."""
    return stack.home / "reports" / f"{run_id}.html"
