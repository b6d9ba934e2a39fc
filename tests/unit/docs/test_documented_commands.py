"""Every command that the README and the pages in docs/ name exists, with the options they give it."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from psrl.workers.cli.commands import app
from tests.support.pages import PAGES, ROOT


def commands(program: str) -> list[Any]:
    """(page, words after the program's name) of what stands in backticks or after a prompt."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        spans = [*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^\$ (.+)$", text, re.MULTILINE)]
        for span in dict.fromkeys(spans):
            for part in re.split(r"\$\(", span):  # a command inside another
                words = _words(part)
                assignments = len(words) - len([*_after_assignments(words)])
                if words[assignments : assignments + len(program.split())] == program.split():
                    rest = words[assignments + len(program.split()) :]
                    found.append(pytest.param(rest, id=f"{page.name}: {program} {' '.join(rest)}"))
    return found


def _words(text: str) -> list[str]:
    text = text.rstrip(')"').split("  #")[0]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _after_assignments(words: list[str]) -> Iterator[str]:
    begun = False
    for word in words:
        begun = begun or not re.fullmatch(r"[A-Z_]+=\S*", word)
        if begun:
            yield word


@pytest.mark.parametrize("words", commands("psrl"))
def test_a_documented_psrl_command_exists_with_its_options(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"no command {name!r}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.strip("[]").partition("=")[0] for word in rest]
    assert [word for word in given if word.startswith("-") and word not in known] == []
    values = [word for word in given if word and not word.startswith("-") and word != "..."]
    named = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    takes_more = any(parameter.nargs == -1 for parameter in named) or any("=" in word for word in rest)
    valued = sum(1 for word in given if word in known and not _is_flag(command, word))
    assert takes_more or len(values) - valued <= len(named), "more arguments than it takes"


@pytest.mark.parametrize("words", commands("make"))
def test_a_documented_make_target_exists(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words[0] in targets


@pytest.mark.parametrize("words", commands("python -m"))
def test_a_documented_module_exists_with_its_options(words: list[str]) -> None:
    spec = importlib.util.find_spec(words[0])
    assert spec is not None
    assert spec.origin is not None
    main = Path(spec.origin)
    source = main.with_name("__main__.py").read_text() if main.name == "__init__.py" else main.read_text()
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in source] == []


def test_commands_are_found_in_the_pages() -> None:
    """Else the tests above would prove nothing."""
    assert len(commands("psrl")) > 20
    assert len(commands("make")) > 3
    assert len(commands("python -m")) > 8


def _is_flag(command: Any, option: str) -> bool:
    return any(
        option in parameter.opts and parameter.is_flag for parameter in command.params if hasattr(parameter, "is_flag")
    )
