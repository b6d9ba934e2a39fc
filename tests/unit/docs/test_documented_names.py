"""Files, tests, links and names in the README and the pages in docs/ exist."""

import re
from functools import cache
from pathlib import Path

import pytest
import temporalio

from tests.support.pages import ROOT, Span, anchors, links, spans

FOLDERS = ("activities", "docs", "examples", "infra", "migrations", "schemas", "src", "tests", "workers", "workflows")
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./*-]*")
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
NAME = re.compile(r"[A-Za-z]\w*_\w*|_\w+")
CONSTANT = re.compile(r"(\w+)\.([A-Z][A-Z_]+)")
ELSEWHERE = {"VLLM_RPC_BASE_PATH", "VLLM_ENGINE_READY_TIMEOUT_S"}
"""Names of others that the code does not use."""


@pytest.mark.parametrize("span", links(), ids=str)
def test_a_link_leads_somewhere(span: Span) -> None:
    target, _, anchor = span.text.partition("#")
    file = (span.page.parent / target).resolve() if target else span.page
    assert file.exists()
    assert not anchor or anchor in anchors(file)


def files() -> list[Span]:
    return [span for span in spans() if FILE.fullmatch(span.text.partition("::")[0])]


@pytest.mark.parametrize("span", files(), ids=str)
def test_a_named_file_and_a_named_test_exist(span: Span) -> None:
    name, _, test = span.text.partition("::")
    assert list(ROOT.glob(name.rstrip("/"))), f"no file {name}"
    assert not test or re.search(rf"^(async )?def {test}\(", (ROOT / name).read_text(), re.MULTILINE), f"no test {test}"


def names() -> list[Span]:
    """Words that can only be names of ours: they have an underscore."""
    return [span for span in spans() if NAME.fullmatch(span.text) and span.text not in ELSEWHERE]


@pytest.mark.parametrize("span", names(), ids=str)
def test_a_name_occurs_in_the_code(span: Span) -> None:
    assert span.text in words()


def constants() -> list[Span]:
    return [span for span in spans() if CONSTANT.fullmatch(span.text)]


@pytest.mark.parametrize("span", constants(), ids=str)
def test_a_constant_is_in_its_file(span: Span) -> None:
    module, name = span.text.split(".")
    assert [
        file for file in sources() if file.stem == module and re.search(rf"^{name}\b", file.read_text(), re.MULTILINE)
    ]


def test_they_are_found_in_the_pages() -> None:
    """Else the tests above would prove nothing."""
    assert len(links()) > 10
    assert len(files()) > 25
    assert len(names()) > 40
    assert len(constants()) >= 1


@cache
def sources() -> list[Path]:
    inside = [file for folder in FOLDERS if folder not in ("docs", "src") for file in (ROOT / folder).rglob("*")]
    kinds = {".py", ".yaml", ".sh", ".ini", ".proto"}
    return [ROOT / "Makefile", ROOT / "pyproject.toml", *(file for file in inside if file.suffix in kinds)]


@cache
def words() -> frozenset[str]:
    """Of ours and of Temporal's SDK, whose options pages mention."""
    sdk = Path(temporalio.__file__).parent.rglob("*.py")
    return frozenset(word for file in (*sources(), *sdk) for word in re.findall(r"\w+", file.read_text()))
