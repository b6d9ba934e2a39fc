"""From a stack and a run's name to its report: the one entry for the CLI."""

from pathlib import Path

from ...activities.store.engine import sync_engine
from ...schemas.stack import Stack
from .rows import RunRows, read_rows
from .summary import RunSummary, summarize


def load(stack: Stack, run_id: str) -> tuple[RunRows, RunSummary]:
    """Raises `RunUnknown` or `Unreachable`."""
    engine = sync_engine(stack.postgres_url)
    try:
        rows = read_rows(engine, run_id)
    finally:
        engine.dispose()
    return rows, summarize(rows)


def page_path(stack: Stack, run_id: str) -> Path:
    """Where the page goes unless the user says otherwise."""
    return stack.home / "reports" / f"{run_id}.html"
