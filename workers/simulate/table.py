"""What was compared, as a table: for the terminal and for the page."""

from collections.abc import Sequence

from .compare import Compared

HEADINGS = (
    "",
    "steps/h",
    "times",
    "tokens/s",
    "trainer idle",
    "slots busy",
    "groups by staleness",
    "dropped",
    "lost tokens",
    "prefilled again",
    "mean length",
)


def rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    return [HEADINGS, *map(_row, compared)]


def as_text(compared: Sequence[Compared]) -> list[str]:
    """Names to the left, numbers to the right."""
    cells = rows(compared)
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    return [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _row(one: Compared) -> tuple[str, ...]:
    result = one.result
    sampled = result.lost_tokens + result.mean_length * result.samples_per_s * result.seconds
    return (
        result.name,
        f"{result.steps_per_hour:,.1f}",
        f"{one.times_first:.2f}",
        f"{result.tokens_per_s:,.0f}",
        f"{result.trainer_idle_share:.0%}",
        f"{result.engine_busy_share:.0%}",
        " ".join(f"{age}:{groups / result.groups_trained:.0%}" for age, groups in result.staleness.items()),
        f"{result.groups_dropped:,}",
        f"{result.lost_tokens / sampled:.1%}",
        f"{result.prefilled_again / sampled:.1%}",
        f"{result.mean_length:,.0f}",
    )
