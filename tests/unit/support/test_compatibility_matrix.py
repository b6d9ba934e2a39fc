"""The page of what works is what tests recorded."""

from pathlib import Path

import pytest

from tests.compatibility.matrix import Rows, page


def test_a_section_shows_its_rows_by_name_and_leaves_out_what_was_not_reached(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.write("models", "qwen2", {"admitted": "yes", "two steps": "yes", "engine gap": "1e-6", "checkpoint": "yes"})
    rows.write("models", "gpt/oss", {"admitted": "yes"}, "no kernel for\na | b")
    lines = page(rows).splitlines()
    assert lines[lines.index("## Model families") + 4 :] == [
        "| | admitted | two steps | engine gap | checkpoint | remark |",
        "|---|---|---|---|---|---|",
        "| gpt/oss | yes |  |  |  | no kernel for a \\| b |",
        "| qwen2 | yes | yes | 1e-6 | yes |  |",
    ]
    assert "## Data" not in lines, "a section without rows is not shown"


def test_a_cell_of_no_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="models has the columns"):
        Rows(tmp_path).write("models", "qwen2", {"admittd": "yes"})
