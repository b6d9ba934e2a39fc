"""Every configuration and every key in the README and the pages in docs/ is one that a run would accept."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from psrl.schemas.config.load import load_config, merge, parse_config
from psrl.schemas.config.root import RunConfig
from psrl.schemas.tables import Base
from psrl.workers.cli.importing.table import find
from psrl.workers.simulate.read import read
from tests.support.pages import ROOT, Block, Span, blocks, command_lines, spans

LEAST: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"train_files": ["t"]},
    "reward": {"function": "tests.support.rewards:length"},
    "psrl": {"rollout_n": 2},
}
"""What every run needs; a page may show a section alone."""
NO_KEYS = {"py", *(folder.name for folder in ROOT.iterdir())}
"""What stands behind the name of a section in the names of files and of modules."""
DOTTED = re.compile(r"([a-z_]\w*(?:\.[a-z_]\w*)+)(=.*)?")


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_documented_configuration_is_one(block: Block, tmp_path: Path) -> None:
    values = OmegaConf.create(block.text)
    if "simulate" in values:
        file = tmp_path / "scenario.yaml"
        file.write_text(block.text)
        read(file, [], [])
    else:
        parse_config(over_the_least(values))


def over_the_least(values: Any) -> dict[str, Any]:
    merged = OmegaConf.to_container(OmegaConf.merge(LEAST, values), resolve=True)
    assert isinstance(merged, dict)
    if "functions" in merged["reward"]:  # in place of one
        del merged["reward"]["function"]
    return {str(section): keys for section, keys in merged.items()}


THEIRS = ROOT / "docs" / "coming-from-verl.md"
"""Has keys of veRL's and PSRL's as well, some of whose sections are called like ours."""


def keys() -> list[Span]:
    """In backticks, when their first part is a section."""
    found = []
    for span in (span for span in spans() if span.page != THEIRS or find(span.text) is None):
        if dotted := DOTTED.fullmatch(span.text):
            first, second = dotted[1].split(".")[:2]
            if first in RunConfig.model_fields and second not in NO_KEYS:
                found.append(span)
    return found


@pytest.mark.parametrize("span", keys(), ids=str)
def test_a_documented_key_exists(span: Span) -> None:
    model: Any = RunConfig
    key, _, value = span.text.partition("=")
    for part in key.split("."):
        assert isinstance(model, type), f"{key} goes on below a value"
        assert issubclass(model, BaseModel), f"{key} goes on below a value"
        assert part in model.model_fields, f"no key {key}: it has no {part!r}"
        model = model.model_fields[part].annotation
    if value:
        merge(None, [span.text])


def overridden() -> list[Span]:
    return [span for span in command_lines() if re.match(r"psrl (train|config show) .*=", span.text)]


@pytest.mark.parametrize("span", overridden(), ids=str)
def test_documented_overrides_fit_their_configuration(span: Span) -> None:
    words = shlex.split(span.text)[2:]
    file = next((ROOT / word for word in words if word.endswith(".yaml") and (ROOT / word).exists()), None)
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    if file is None:
        parse_config(over_the_least(merge(None, overrides)))
    else:
        load_config(file, overrides)


def columns() -> list[Span]:
    return [span for span in spans() if re.fullmatch(rf"({'|'.join(Base.metadata.tables)})\.(?!py$)\w+", span.text)]


@pytest.mark.parametrize("span", columns(), ids=str)
def test_a_documented_column_exists(span: Span) -> None:
    table, column = span.text.split(".")
    assert column in Base.metadata.tables[table].columns


def test_they_are_found_in_the_pages() -> None:
    """Else the tests above would prove nothing."""
    assert len(blocks("yaml")) >= 1
    assert len(keys()) > 15
    assert len(overridden()) >= 2
    assert len(columns()) >= 1
