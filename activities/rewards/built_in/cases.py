"""Tests as data sets have them, in the form that the harness runs. Whatever else a row holds is a fault of the data.

Nothing of it is executed here.
"""

import ast
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ....schemas.config.built_in_rewards import TestForm
from ....schemas.text import shown

NOTHING_HAPPENS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
"""Statements of which alone no test consists: HumanEval's define `check`, which somebody else calls."""
Case = list[str]
"""A text of Python; for `stdin` the input and the output."""


def read_cases(form: TestForm, value: Any) -> list[Case]:
    """At least one. Raises `ValueError`."""
    match form:
        case TestForm.ASSERTS:
            cases = [[text] for text in _asserts(_unpacked(value))]
        case TestForm.STDIN:
            cases = list(map(list, _pairs(_unpacked(value))))
        case TestForm.PYTEST:
            cases = [[_python(_text(value, "the text of a file of pytest's"))]]
    if not cases:
        raise ValueError("there is no test")
    return cases


def _unpacked(value: Any) -> Any:
    """JSON that the data have as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value  # a text of Python may begin so
    return value


def _asserts(value: Any) -> list[str]:
    texts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [test for text in texts for test in _apart(_text(text, "texts of Python with assert"))]


def _apart(text: str) -> list[str]:
    """Each statement for itself, where all are `assert`."""
    tree = _parsed(text)
    if tree.body and all(isinstance(statement, ast.Assert) for statement in tree.body):
        return [ast.unparse(statement) for statement in tree.body]
    if tree.body and all(isinstance(statement, NOTHING_HAPPENS) for statement in tree.body):
        raise ValueError(f"{shown(text)} only defines and calls nothing, so that any code would pass")
    return [text] if tree.body else []


def _pairs(value: Any) -> list[tuple[str, str]]:
    allowed = "a list of {input, output}, or {inputs: [...], outputs: [...]}"
    if isinstance(value, Mapping):
        if value.get("fn_name"):
            raise ValueError(f"the tests call {shown(value['fn_name'])}; allowed: tests on standard input")
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise ValueError(f"{shown(value)}; allowed: {allowed}, as many outputs as inputs")
        return [(_lines(given), _lines(wanted)) for given, wanted in zip(inputs, outputs, strict=True)]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) and "output" in one for one in value):
        raise ValueError(f"{shown(value)}; allowed: {allowed}")
    return [(_lines(one.get("input", "")), _lines(one["output"])) for one in value]


def _lines(value: Any) -> str:
    """Some data sets have a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return _text(value, "texts")


def _text(value: Any, allowed: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)}; allowed: {allowed}")
    return value


def _python(text: str) -> str:
    _parsed(text)
    return text


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # people's tests hold '\d' and the like
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{shown(text)} is no Python: {error}") from None
