"""The table of promises in docs/architecture.md leads to the files that keep them and the tests that would fail."""

import re

import pytest

from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = {row[0]: row for row in re.findall(r"^\| (L\d+) \| (.*?) \| (.*?) \| (.*?) ?\|$", PAGE, re.MULTILINE)}
NOT_BUILT = {"L7"}


def test_every_promise_has_a_row() -> None:
    assert list(ROWS) == [f"L{number}" for number in range(1, 15)]
    assert {name for name, (_, _, kept, _) in ROWS.items() if kept.startswith("not built yet")} == NOT_BUILT


@pytest.mark.parametrize("name", [name for name in ROWS if name not in NOT_BUILT])
def test_the_files_that_keep_a_promise_name_it_and_a_test_holds_them_to_it(name: str) -> None:
    _, _, kept, tests = ROWS[name]
    files = re.findall(r"`([\w/]+\.py)`", kept)
    assert files
    assert [file for file in files if not re.search(rf"\b{name}\b", (ROOT / file).read_text())] == []
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", tests)
    assert named
    for file, test in named:
        assert not test or f"def {test}(" in (ROOT / file).read_text()
