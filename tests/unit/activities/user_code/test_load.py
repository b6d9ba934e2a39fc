"""From an import path, or a file, to a function."""

import os
import sys
from pathlib import Path

import pytest

from psrl.activities.user_code.load import load_function
from psrl.schemas.errors import RewardLoadError
from tests.support import rewards


def load(path: str) -> object:
    return load_function("reward.function", path, RewardLoadError)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests.support.rewards", "allowed: package.module:function or path/to/file.py:function"),
        ("tests.support.none:f", "No module named 'tests.support.none'"),
        ("tests.support.rewards:lenght", r"has no 'lenght' \(did you mean 'length'\?\)"),
        ("tests.support.rewards:not_a_function", "is a int, not a function"),
        ("tests.support.rewards:Allowance", "is a class; allowed: a function, or an object of a class"),
        ("tests.support.rewards:Allowance.tkae", r"has no 'Allowance.tkae' \(did you mean 'take'\?\)"),
        ("tests.support.hostile_rewards:yields", "is a generator, which yields; allowed: a function that returns"),
        ("tests.support.hostile_rewards:object_that_yields", "is a generator, which yields"),
        ("tests.support.hostile_rewards:yields_below_a_decorator", "is a generator, which yields"),
        ("tests.support.hostile_rewards:yields_through_a_decorator", "is a generator, which yields"),
        (
            "tests.support.broken_reward:f",
            r"\): ZeroDivisionError: division by zero \(\S*tests/support/broken_reward\.py, line 3: RATE = 1 / 0\)$",
        ),
        ("no/such/file.py:f", "there is no file no/such/file.py"),
        ("tests/support/rewards.py:lenght", r"has no 'lenght' \(did you mean 'length'\?\)"),
        ("tests/support:f", "there is no file tests/support "),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_naming_it(path: str, reason: str) -> None:
    with pytest.raises(RewardLoadError, match=reason):
        load(path)


@pytest.mark.parametrize("name", ["yields_to_a_decorator", "yields_to_an_inner_decorator"])
def test_a_generator_whose_decorator_makes_a_value_of_it_is_a_function(name: str) -> None:
    function = load(f"tests.support.hostile_rewards:{name}")
    assert callable(function)
    assert function(rewards.answered("a")) == 1.0


@pytest.mark.parametrize("as_file", [False, True])
def test_edited_code_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / f"edited_reward_{as_file}.py"
    for number_of_edit, value in enumerate((1, 22)):
        file.write_text(f"def f(sample): return {value}")
        os.utime(file, ns=(number_of_edit, number_of_edit))
        function = load(f"{file if as_file else file.stem}:f")
        assert callable(function)
        assert function(None) == value


def test_a_file_finds_what_lies_beside_it_and_hides_nothing_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field report 207: people call their files `types.py` and `token.py`."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_reward.py").write_text("VALUE = 5")
    (tmp_path / "colorsys.py").write_text("VALUE = 7")
    (tmp_path / "types.py").write_text("")
    code = "import colorsys, types\nfrom beside_the_reward import VALUE\n"
    (tmp_path / "judge.py").write_text(
        f"{code}def f(sample): return VALUE, hasattr(colorsys, 'VALUE'), types.FunctionType"
    )
    function = load(f"{tmp_path / 'judge.py'}:f")
    assert callable(function)
    assert function(None) == (5, False, type(lambda: None))


def test_a_file_has_the_name_by_which_other_processes_import_it_unless_another_module_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    named = {}
    for place in ("first/the_only_judge.py", "first/two_judges.py", "second/two_judges.py", "first/token.py"):
        file = tmp_path / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"def f(sample): return {place!r}")
        function = load(f"{file}:f")
        assert callable(function)
        assert function(None) == place
        named[place] = function.__module__
    assert named["first/the_only_judge.py"] == "the_only_judge"
    assert named["first/two_judges.py"] == "two_judges" != named["second/two_judges.py"]
    assert named["first/token.py"] != "token"


def test_a_module_that_fails_on_import_is_told_in_one_line_by_the_users_own_lines(tmp_path: Path) -> None:
    (tmp_path / "broken_below.py").write_text("import json\n\njson.loads('{')")
    (tmp_path / "judge.py").write_text("\nimport broken_below")
    with pytest.raises(RewardLoadError) as caught:
        load(f"{tmp_path / 'judge.py'}:f")
    (told,) = str(caught.value).splitlines()
    below = f"{tmp_path}/broken_below.py, line 3: json.loads('{{')"
    assert told.endswith(f"({tmp_path}/judge.py, line 2: import broken_below -> {below})")


def test_a_relative_import_in_a_file_is_told_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "relative.py").write_text("from . import helper")
    with pytest.raises(RewardLoadError, match="belongs to no package, its module does"):
        load(f"{tmp_path / 'relative.py'}:f")


def test_a_method_is_named_as_an_attribute() -> None:
    assert load("tests.support.rewards:allowance.take") == rewards.allowance.take


@pytest.mark.parametrize("code", ["raise SystemExit('usage: judge FILE')", "raise KeyboardInterrupt"])
def test_a_script_that_exits_on_import_is_refused_and_ends_nobody(tmp_path: Path, code: str) -> None:
    (tmp_path / "script.py").write_text(code)
    with pytest.raises(RewardLoadError, match=r"script\.py failed \(working directory"):
        load(f"{tmp_path / 'script.py'}:f")
