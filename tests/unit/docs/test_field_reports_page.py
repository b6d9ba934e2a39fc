"""The page of field reports names tests that exist."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
SHORT = re.compile(r"`(\w+)` is\s+`([\w/.]+)`")
NAMED = re.compile(r"([\w/.]+)::(test_\w+)")


def test_every_test_that_the_page_names_exists() -> None:
    page = (REPOSITORY / "docs" / "field-reports.md").read_text()
    files = dict(SHORT.findall(page))
    named = [(files.get(file, file), test) for file, test in NAMED.findall(page)]
    assert len(named) > 50
    missing = [
        f"{file}::{test}" for file, test in named if f"def {test}(" not in (REPOSITORY / "tests" / file).read_text()
    ]
    assert missing == []
