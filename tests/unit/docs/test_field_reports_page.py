"""The page of field reports names tests that exist."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
SHORT = re.compile(r"`(\w+)` is\s+`([\w/.]+)`")
NAMED = re.compile(r"([\w/.]*)::(test_\w+)")
"""Without a file: in the file of the one before."""


def test_every_test_that_the_page_names_exists() -> None:
    page = (REPOSITORY / "docs" / "field-reports.md").read_text()
    files = dict(SHORT.findall(page))
    named: list[tuple[str, str]] = []
    for file, test in NAMED.findall(page):
        named.append((files.get(file, file) or named[-1][0], test))
    assert len(named) > 80
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in (REPOSITORY / "tests" / file).read_text()
    ]
    assert missing == []
