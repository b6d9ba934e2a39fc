"""Answers with code, and what becomes of them in the sandbox."""

import json
from typing import Any

import pytest

from psrl.activities.rewards.built_in import code_tests
from psrl.activities.rewards.built_in.code_tests import CodeTests
from psrl.schemas.config.built_in_rewards import CodeTestsOptions
from psrl.schemas.errors import RewardLoadError, UserCodeFailed
from tests.support.rewards import answered

ASSERTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add(2, 2) == 4"]
ADDS = [{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in ((1, 2), (3, 4))]
PYTEST = """
import pytest
from solution import add

@pytest.mark.parametrize("a", [1, 2, 3])
def test_add(a):
    assert add(a, 1) == a + 1
"""
RIGHT = "def add(a, b):\n    return a + b\n"
PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"


def block(code: str) -> str:
    return f"Let me think.\n```python\n{code}```\nThat is it."


async def score(answer: str, tests: Any, form: str = "asserts", **options: Any) -> dict[str, float]:
    reward = CodeTests(CodeTestsOptions.model_validate({"form": form, **options}))
    return await reward(answered(answer, ground_truth=tests))


@pytest.mark.parametrize(
    ("form", "code", "tests", "count"),
    [("asserts", RIGHT, ASSERTS, 3), ("stdin", PROGRAM, ADDS, 2), ("pytest", RIGHT, PYTEST, 3)],
)
async def test_code_that_passes_all_tests_scores_1(form: str, code: str, tests: Any, count: int) -> None:
    found = await score(block(code), tests, form)
    assert found == {"score": 1.0, "passed": count, "tests": count, "has_code": True, "timed_out": 0.0}


@pytest.mark.parametrize(
    ("form", "code", "tests", "passed"),
    [
        ("asserts", "def add(a, b):\n    return abs(a) + b\n", ASSERTS, 2),
        ("stdin", PROGRAM.replace("a + b", "a + b if a == 1 else 0"), ADDS, 1),
        ("pytest", "def add(a, b):\n    return 2 if a == 1 else 0\n", PYTEST, 1),
    ],
)
async def test_a_part_of_the_tests_counts_where_it_is_asked_for(form: str, code: str, tests: Any, passed: int) -> None:
    count = 2 if form == "stdin" else 3
    partial = await score(block(code), tests, form, partial=True)
    assert (partial["score"], partial["passed"], partial["tests"]) == (passed / count, passed, count)
    assert (await score(block(code), tests, form))["score"] == 0.0


CHEATS = {
    "ends well at once": "import sys\nsys.exit(0)\n",
    "ends the process at once": "import os\nos._exit(0)\n",
    "ends the process when it is called": "import os\ndef add(a, b):\n    print('1 1 1')\n    os._exit(0)\n",
    "says everywhere that it has passed": (
        "import os\n"
        "for end in range(1, 30):\n    try: os.write(end, b'1 1\\n' * 3)\n    except OSError: pass\n"
        "os._exit(0)\n"
    ),
    "raises": "raise ValueError\n",
    "is no Python": "def add(a, b:\n",
    "defines nothing": "x = 1\n",
}


@pytest.mark.parametrize("form", ["asserts", "pytest"])
@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS.keys())
async def test_code_that_does_not_answer_passes_nothing(form: str, code: str) -> None:
    found = await score(block(code), ASSERTS if form == "asserts" else PYTEST, form, partial=True)
    assert (found["score"], found["passed"]) == (0.0, 0)


@pytest.mark.parametrize(
    "code",
    [
        "print('3')\n",
        "import sys\nsys.exit(0)\n",
        "a =\n",
        "print(sum(map(int, input().split())))\nraise SystemExit(1)\n",
    ],
)
async def test_a_program_that_says_something_else_or_ends_badly_passes_nothing(code: str) -> None:
    assert (await score(block(code), ADDS[1:], "stdin", partial=True))["passed"] == 0


async def test_a_test_that_hangs_costs_no_other() -> None:
    hangs = "def add(a, b):\n    while a == -1: pass\n    return a + b\n"
    assert (await score(block(hangs), ASSERTS, test_s=1, partial=True))["passed"] == 2
    program = PROGRAM.replace("print", "while a == 1: pass\nprint")
    assert (await score(block(program), ADDS, "stdin", test_s=1, partial=True))["passed"] == 1
    assert (await score(block(hangs.replace("-1", "2")), PYTEST, "pytest", test_s=1, partial=True))["passed"] == 2


async def test_what_is_past_the_limits_of_all_tests_is_wrong_and_said() -> None:
    found = await score(block("while True: pass\n"), ASSERTS, limits={"wall_s": 2, "cpu_s": 1})
    assert (found["score"], found["timed_out"]) == (0.0, 1.0)
    hog = "def add(a, b):\n    return len(bytearray(1 << 30)) and a + b\n"
    assert (await score(block(hog), ASSERTS, limits={"memory_mb": 128}))["passed"] == 0


async def test_the_tests_are_not_to_be_found_by_the_code() -> None:
    """Not even among the files; what it says itself is no verdict."""
    code = "import os\nfiles = str([open(name).read() for name in os.listdir('.')])\n"
    assert (await score(block(code), ["assert 'assert' + ' ' + 'files' not in files"]))["score"] == 1.0


@pytest.mark.parametrize(
    ("answer", "passed", "has_code"),
    [
        (f"```python\n1/0\n```\nNo, rather:\n```py\n{RIGHT}```", 3, True),
        (f"```\n{RIGHT}```", 3, True),
        (f"  ```Python\n{RIGHT}  ```", 3, True),
        (f"```python\n{RIGHT}```\nas in\n```text\n3\n```", 3, True),
        (f"```json\n{{}}\n```\nand so\n```python\n{RIGHT}```\nRun it:\n```bash\npython a.py\n```\n", 3, True),
        (f"```text\nnever closed\n```python\n{RIGHT}```", 3, True),
        (RIGHT, 0, False),
        (f"```python\n{RIGHT}", 0, False),
        ("", 0, False),
    ],
)
async def test_the_last_block_of_python_is_the_code(answer: str, passed: int, has_code: bool) -> None:
    found = await score(answer, ASSERTS)
    assert (found["passed"], found["has_code"]) == (passed, has_code)


async def test_an_answer_without_a_block_can_be_code_as_a_whole() -> None:
    assert (await score(RIGHT, ASSERTS, fenced=False))["score"] == 1.0


async def test_of_several_turns_the_last_answer_counts() -> None:
    turns = [{"policy": block(RIGHT)}, {"environment": block("1/0"), "policy": block(RIGHT.replace("+", "-"))}]
    reward = CodeTests(CodeTestsOptions.model_validate({"form": "asserts"}))
    for told, score in ((turns, 0.0), (turns[::-1], 1.0)):
        text = "".join(turn["policy"] for turn in turns)
        assert (await reward(answered(text, ground_truth=ASSERTS, turns=told)))["score"] == score


async def test_tests_in_another_column() -> None:
    reward = CodeTests(CodeTestsOptions.model_validate({"form": "asserts", "column": "test_list"}))
    assert reward.columns == {"test_list"}
    found = await reward(answered(block(RIGHT), ground_truth="-", extra={"test_list": json.dumps(ASSERTS)}))
    assert found["score"] == 1.0


async def test_a_row_without_tests_and_a_sandbox_that_cannot_be_had_are_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="column 'ground_truth': None; allowed: texts of Python"):
        await score(block(RIGHT), None)
    monkeypatch.setattr(code_tests, "PYTHON", "/no/such/python")
    with pytest.raises(UserCodeFailed, match="the sandbox could not run it"):
        await score(block(RIGHT), ASSERTS)


def test_admission_says_where_code_cannot_be_confined_and_refuses_it_where_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_tests, "unconfined", lambda: "no namespaces")
    monkeypatch.setattr(code_tests, "unusable", lambda: "")
    told = CodeTests(CodeTestsOptions.model_validate({"form": "stdin"})).admit()
    assert told == (
        "the code in answers can reach the network and read files, since it cannot be confined here: no namespaces"
    )
    with pytest.raises(RewardLoadError, match=r"must_be_confined=true, but programs cannot be .*: no namespaces"):
        CodeTests(CodeTestsOptions.model_validate({"form": "stdin", "must_be_confined": True})).admit()
    monkeypatch.setattr(code_tests, "unusable", lambda: "no right to read it")
    with pytest.raises(RewardLoadError, match=r"no code can be run on this machine: no right to read it"):
        CodeTests(CodeTestsOptions.model_validate({"form": "stdin"})).admit()
    monkeypatch.setattr(code_tests, "unconfined", lambda: "")
    assert CodeTests(CodeTestsOptions.model_validate({"form": "stdin", "must_be_confined": True})).admit() is None


def test_admission_refuses_files_of_pytest_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_tests.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RewardLoadError, match="form='pytest', but the cpu workers have no pytest"):
        CodeTests(CodeTestsOptions.model_validate({"form": "pytest"})).admit()
