"""Blocks of the README and the pages in docs/: each is of a kind that something checks."""

import ast
import importlib
import re

import pytest

from tests.support.pages import Block, blocks

KINDS = {"console", "text", "yaml", "python", "sql", "mermaid", "json"}
"""Console and yaml are checked beside, sql by tests/integration/test_documented_queries.py."""
COMMAND = re.compile(r"^\$ |`(?:psrl|make|python -m|pytest|temporal|git) [^`]*`", re.MULTILINE)


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in KINDS


@pytest.mark.parametrize("block", blocks("text"), ids=str)
def test_quoted_output_names_the_command_that_gives_it(block: Block) -> None:
    """In itself, or in what stands since the last heading."""
    since = re.split(r"^#+ ", block.before, flags=re.MULTILINE)[-1]
    assert COMMAND.search(block.text) or COMMAND.search(since)


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_documented_code_compiles_and_what_it_imports_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert missing == [], node.module
