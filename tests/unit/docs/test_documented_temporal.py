"""Plain `temporal` commands in the pages that people read: options, workflows, signals, queries and inputs exist."""

import re
import shlex
import subprocess
from functools import cache

import pytest
from pydantic import TypeAdapter
from temporalio import workflow

from psrl.schemas.ids import ORCHESTRATOR_QUEUE
from psrl.schemas.messages.run import StartRun, StopRun
from psrl.workflows.run.training_run import TrainingRun
from tests.support.pages import Span, command_lines
from tests.support.temporal import temporal_binary

COMMAND = re.compile(r"temporal workflow (start|signal|query|metadata|terminate|show|describe)\b(.*)")


def commands() -> list[Span]:
    found = {Span(line.page, match[0]) for line in command_lines() if (match := COMMAND.search(line.text))}
    return sorted((span for span in found if "--" in span.text), key=str)


@pytest.mark.parametrize("span", commands(), ids=str)
def test_a_documented_temporal_command_fits_the_workflows(span: Span) -> None:
    verb, rest = COMMAND.fullmatch(span.text).groups()  # type: ignore[union-attr]
    words = shlex.split(rest)
    given = {word: value for word, value in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}
    assert [option for option in given if option not in options(verb)] == []
    definition = workflow._Definition.must_from_class(TrainingRun)
    assert given.get("--task-queue", ORCHESTRATOR_QUEUE) == ORCHESTRATOR_QUEUE
    if verb == "start":
        assert given["--type"] == definition.name
    if verb == "signal":
        assert given["--name"] in definition.signals
    if verb == "query":
        assert given["--type"] in definition.queries
    if given.get("--input", "").startswith("{") and "..." not in given["--input"]:
        TypeAdapter(StartRun if verb == "start" else StopRun).validate_json(given["--input"])


@cache
def options(verb: str) -> set[str]:
    asked = [temporal_binary(), "workflow", verb, "--help"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
    return set(re.findall(r"--[a-z-]+", told))


def test_they_are_found_in_the_pages() -> None:
    """Else the test above would prove nothing."""
    assert len(commands()) > 6
