"""From an import path, or a file, to a function."""

import os
import sys
from pathlib import Path

import pytest

from psrl.activities.user_code.load import load_function
from psrl.schemas.errors import RewardLoadError


def load(path: str) -> object:
    return load_function("reward.function", path, RewardLoadError)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("tests.support.rewards", "allowed: package.module:function or path/to/file.py:function"),
        ("tests.support.none:f", "No module named 'tests.support.none'"),
        ("tests.support.rewards:lenght", r"has no 'lenght' \(did you mean 'length'\?\)"),
        ("tests.support.rewards:not_a_function", "is a int, not a function"),
        ("tests.support.rewards:Allowance", "is a type, not a function"),
        ("tests.support.hostile_rewards:yields", "is a generator, which yields; allowed: a function that returns"),
        ("tests.support.broken_reward:f", r"(?s)broken_reward.py.*ZeroDivisionError"),
        ("no/such/file.py:f", "there is no file no/such/file.py"),
        ("tests/support/rewards.py:lenght", r"has no 'lenght' \(did you mean 'length'\?\)"),
        ("tests/support:f", "there is no file tests/support "),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_naming_it(path: str, reason: str) -> None:
    with pytest.raises(RewardLoadError, match=reason):
        load(path)


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


@pytest.mark.parametrize("code", ["raise SystemExit('usage: judge FILE')", "raise KeyboardInterrupt"])
def test_a_script_that_exits_on_import_is_refused_and_ends_nobody(tmp_path: Path, code: str) -> None:
    (tmp_path / "script.py").write_text(code)
    with pytest.raises(RewardLoadError, match=r"script\.py failed \(working directory"):
        load(f"{tmp_path / 'script.py'}:f")
