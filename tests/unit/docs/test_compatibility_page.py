"""docs/compatibility.md is written by `make compatibility`; this holds that it is the page of the inputs there are."""

import re

import pytest

from tests.compatibility.matrix import INTRODUCTION, PAGE, SECTIONS
from tests.support.families import FAMILIES


def rows() -> dict[str, list[str]]:
    """By name, the cells and the remark."""
    lines = re.findall(r"^\| ([^|]+?) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", cells)] for name, cells in lines}


def test_the_page_is_one_that_was_generated() -> None:
    page = PAGE.read_text()
    assert page.startswith(INTRODUCTION)
    titles = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert titles == [section.title for section in SECTIONS if section.title in titles]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_was_tried_and_what_is_lacking_has_a_remark(family: str) -> None:
    *cells, remark = rows()[family]
    assert cells[0] == "yes"
    assert "yes" in cells[1] or remark
    assert "" not in cells or remark
