"""The tables of docs/compatibility.md: one section per kind of input, one row per input, each cell what a test saw.

A test of this folder records its row when it has seen it; `python -m tests.compatibility` runs the tests and writes the
page. To add rows, add a test that takes the fixture `record`; to add a kind of input, add a `Section`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
YES = "yes"
REMARK = "remark"
INTRODUCTION = """# What works

Written by `make compatibility`: every cell is what a test saw when it ran with that input (`tests/compatibility/`).
"""


class Section(NamedTuple):
    key: str
    title: str
    about: str
    columns: tuple[str, ...]
    """Beside the input's name and a remark."""


SECTIONS: Final = (
    Section(
        "models",
        "Model families",
        "A tiny random model of each family, in float32 on the CPU: it is admitted, trained for two steps with a real "
        "vLLM engine, and its checkpoint is loaded by plain `transformers`. The gap is the largest difference between "
        "a log-prob of the engine and of the trainer under the same weights.",
        ("admitted", "two steps", "engine gap", "checkpoint"),
    ),
    Section(
        "data",
        "Data",
        "One file of each shape, as admission takes it.",
        ("admitted",),
    ),
    Section(
        "rewards",
        "Rewards",
        "One function of each signature and kind.",
        ("admitted", "scored"),
    ),
)


class Record(Protocol):
    def __call__(self, section: str, name: str, cells: Mapping[str, str], remark: str = "") -> None:
        """The row of one input: a cell for each column of the section that was reached."""
        ...


class Rows:
    """Recorded rows, one file each, so that tests may run in several processes. `Record` is `Rows.write`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, section: str, name: str, cells: Mapping[str, str], remark: str = "") -> None:
        known = {one.key: one.columns for one in SECTIONS}[section]
        assert cells.keys() <= set(known), f"{section} has the columns {known}"
        place = self._folder / section
        place.mkdir(parents=True, exist_ok=True)
        here = str(Path.cwd())
        remark = remark.replace(f"{here}/", "").replace(here, ".")  # the page is of no machine
        (place / f"{name.replace('/', ' ')}.json").write_text(json.dumps([name, {**cells, REMARK: remark}]))

    def of(self, section: str) -> list[tuple[str, Mapping[str, str]]]:
        files = (self._folder / section).glob("*.json")
        return sorted((name, cells) for name, cells in (json.loads(file.read_text()) for file in files))


def page(rows: Rows) -> str:
    return "\n".join([INTRODUCTION, *(line for section in SECTIONS for line in _table(section, rows))])


def _table(section: Section, rows: Rows) -> Iterator[str]:
    found = rows.of(section.key)
    if not found:
        return
    columns = (*section.columns, REMARK)
    yield from (f"## {section.title}", "", section.about, "")
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name, cells in found:
        yield f"| {name} | {' | '.join(_cell(cells.get(column, '')) for column in columns)} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
