"""The pages that people read, taken apart: blocks of code, words in backticks, links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str
    before: str
    """The rest of the page, down to the block."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0][:60]}"


@dataclass(frozen=True)
class Span:
    """A word or a command in backticks."""

    page: Path
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text[:80]}"


def blocks(*languages: str) -> list[Block]:
    """Fenced blocks, in the order of the pages; all of them when no language is given."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCED.finditer(text):
            if not languages or match[2] in languages:
                found.append(Block(page, match[2], match[3], text[: match.start()]))
    return found


def spans() -> list[Span]:
    """Each once per page; of the running text, not of blocks."""
    found: dict[Span, None] = {}
    for page in PAGES:
        for text in re.findall(r"`([^`]+)`", FENCED.sub("", page.read_text())):
            found[Span(page, " ".join(text.split()))] = None
    return list(found)


def links() -> list[Span]:
    """Targets of links and images that lie in the repository."""
    found: dict[Span, None] = {}
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
            if not target.startswith(("http://", "https://")):
                found[Span(page, target)] = None
    return list(found)


def command_lines() -> Iterator[Span]:
    """After a prompt in a block, and in backticks."""
    for block in blocks("console", "text"):
        for line in re.findall(r"^\$ (.+)$", block.text.replace("\\\n", " "), re.MULTILINE):
            yield Span(block.page, line)
    yield from spans()


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
