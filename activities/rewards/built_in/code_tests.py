"""`code_tests`: the tests of the data's row, run against the code in the answer.

Promise: an answer without code, with code that does not run, or that runs past a limit, is wrong, which is a score; a
row without tests and a sandbox that cannot be had are failures (L10).
"""

import importlib.util
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from ....schemas.config.built_in_rewards import CodeTestsOptions, TestForm
from ....schemas.errors import RewardLoadError
from ....schemas.messages.rewards import RewardSample
from ...user_code.sandbox import PYTHON, Ran, run, unconfined, unusable
from ..shapes import Row, columns_of
from .cases import Case, read_cases
from .contract import BuiltIn

GROUND_TRUTH = "ground_truth"
HARNESS = Path(__file__).with_name("harness.py")
FENCED = re.compile(r"^[ \t]*```[ \t]*([^\s`]*)[^\n`]*\n((?:(?![ \t]*```).*\n)*)[ \t]*```(?!\w)", re.MULTILINE)
"""A block of whatever language: the end of one must not be taken for the beginning of another."""
PYTHONS = ("", "py", "python", "python3")


class CodeTests(BuiltIn):
    def __init__(self, options: CodeTestsOptions) -> None:
        self._options = options
        self._column = options.column or GROUND_TRUTH
        self.columns = frozenset({self._column})
        # More would take each other's time, and an answer would fail for that.
        self.at_once = len(os.sched_getaffinity(0))

    def admit(self) -> str | None:
        if self._options.form is TestForm.PYTEST and importlib.util.find_spec("pytest") is None:
            raise RewardLoadError("form='pytest', but the cpu workers have no pytest; allowed: asserts, stdin")
        why = unconfined()
        if not why:
            return None
        if self._options.must_be_confined:
            raise RewardLoadError(f"must_be_confined=true, but programs cannot be confined on this machine: {why}")
        if cannot := unusable():
            raise RewardLoadError(f"form={self._options.form}, but no code can be run on this machine: {cannot}")
        return f"the code in answers can reach the network and read files, since it cannot be confined here: {why}"

    def check_row(self, row: Row) -> None:
        self._cases(row)

    async def __call__(self, sample: RewardSample) -> dict[str, float]:
        cases = self._cases(sample)
        # Of several turns the last answer counts; between them others have spoken.
        code = self._code(sample.turns[-1].policy if sample.turns else sample.response_text)
        if code is None:
            return _scored(0.0, 0, len(cases), has_code=False)
        token = secrets.token_hex(16)
        ran = await self._run(code, cases, token)
        passed, tests = _count(ran, token)
        if self._options.form is not TestForm.PYTEST:
            tests = len(cases)
        share = passed / tests if tests else 0.0
        found = _scored(share if self._options.partial else float(share == 1.0), passed, tests, has_code=True)
        return {**found, "timed_out": float(ran.timed_out)}

    def _cases(self, row: Row) -> list[Case]:
        try:
            return read_cases(self._options.form, columns_of(row).get(self._column))
        except ValueError as error:
            raise ValueError(f"column {self._column!r}: {error}") from None

    def _code(self, answer: str) -> str | None:
        if blocks := [code for language, code in FENCED.findall(answer) if language.lower() in PYTHONS]:
            return str(blocks[-1])
        return None if self._options.fenced else answer

    async def _run(self, code: str, cases: list[Case], token: str) -> Ran:
        told = {
            "form": self._options.form,
            "code": code,
            "cases": cases,
            "test_s": self._options.test_s,
            "token": token,
        }
        files = {"harness.py": HARNESS.read_text()}
        program = [PYTHON, "-I", "harness.py"]
        return await run(program, files=files, stdin=json.dumps(told) + "\n", limits=self._options.limits)


def _count(ran: Ran, token: str) -> tuple[int, int]:
    """Tests that passed, and all that were run."""
    verdicts = [line.removeprefix(f"{token} ") for line in ran.stdout.splitlines() if line.startswith(f"{token} ")]
    return verdicts.count("1"), len(verdicts)


def _scored(score: float, passed: int, tests: int, *, has_code: bool) -> dict[str, Any]:
    return {"score": score, "passed": passed, "tests": tests, "has_code": has_code}
