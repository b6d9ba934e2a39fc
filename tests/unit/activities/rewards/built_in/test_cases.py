"""Tests as data sets have them."""

from typing import Any

import pytest

from psrl.activities.rewards.built_in.cases import read_cases
from psrl.schemas.config.built_in_rewards import TestForm

FUNCTION = "def check(f):\n    assert f(1) == 2\ncheck(add)"


@pytest.mark.parametrize(
    ("form", "value", "cases"),
    [
        pytest.param("asserts", ["assert f(1) == 2", "assert f(2)==3"], [["assert f(1) == 2"], ["assert f(2) == 3"]]),
        pytest.param("asserts", '["assert f(1) == 2"]', [["assert f(1) == 2"]], id="JSON as text"),
        pytest.param("asserts", "assert a\nassert b, 'why'", [["assert a"], ["assert b, 'why'"]], id="statements"),
        pytest.param("asserts", FUNCTION, [[FUNCTION]], id="more than assert"),
        pytest.param("asserts", "[1][0]", [["[1][0]"]], id="Python that looks like JSON"),
        pytest.param("stdin", [{"input": "1\n", "output": "2"}], [["1\n", "2"]]),
        pytest.param("stdin", [{"output": "2"}], [["", "2"]], id="without input"),
        pytest.param("stdin", {"inputs": ["1", ["2", 3]], "outputs": ["a", ["b"]]}, [["1", "a"], ["2\n3", "b"]]),
        pytest.param("stdin", '{"inputs": ["1"], "outputs": ["a"]}', [["1", "a"]], id="JSON as text, two lists"),
        pytest.param("pytest", "def test_it(): ...", [["def test_it(): ..."]]),
    ],
)
def test_what_a_row_may_hold(form: str, value: Any, cases: list[list[str]]) -> None:
    assert read_cases(TestForm(form), value) == cases


@pytest.mark.parametrize(
    ("form", "value", "said"),
    [
        ("asserts", None, "None; allowed: texts of Python with assert"),
        ("asserts", [], "there is no test"),
        ("asserts", "# nothing", "there is no test"),
        ("asserts", ["assert f(1) = 2"], "'assert f(1) = 2' is no Python: "),
        ("asserts", ["assert '\0'"], "is no Python: "),
        ("asserts", "METADATA = {}\ndef check(f):\n    assert f(1) == 2\n", "only defines and calls nothing"),
        ("asserts", [3], "3; allowed: texts of Python"),
        ("stdin", "1 2", "'1 2'; allowed: a list of {input, output}, or {inputs: [...], outputs: [...]}"),
        ("stdin", [], "there is no test"),
        ("stdin", [{"input": "1"}], "allowed: a list of {input, output}"),
        ("stdin", [{"input": "1", "output": 3}], "3; allowed: texts"),
        ("stdin", {"inputs": ["1"], "outputs": []}, "as many outputs as inputs"),
        ("stdin", {"inputs": [], "outputs": []}, "there is no test"),
        ("stdin", {"fn_name": "add", "inputs": [], "outputs": []}, "the tests call 'add'; allowed: tests on standard"),
        ("pytest", ["def test_it(): ..."], "allowed: the text of a file of pytest's"),
        ("pytest", "def test_it(:", "is no Python: "),
    ],
)
def test_what_it_may_not_hold_is_refused_by_name(form: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  (the text is compared below)
        read_cases(TestForm(form), value)
    assert said in str(refusal.value)
