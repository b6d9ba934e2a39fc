"""The order of a run over everything, in a nested one."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
FILE = """
import os, pytest

@pytest.fixture(autouse=True)
def told(request):
    with open({told!r}, "a") as out:
        print(request.node.name, os.environ.get("PYTEST_XDIST_WORKER"), file=out)

"""


@pytest.fixture
def nested(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest('pytest_plugins = ("tests.support.order",)')
    pytester.makeini("[pytest]\nmarkers = e2e: engines\nasyncio_default_fixture_loop_scope = function\n")
    (pytester.path / "e2e").mkdir()
    return pytester


def write(nested: pytest.Pytester, file: str, rest: str) -> None:
    (nested.path / file).write_text(FILE.format(told=str(nested.path / "told")) + rest)


def test_end_to_end_tests_come_last_and_on_one_worker(nested: pytest.Pytester) -> None:
    write(nested, "e2e/test_a.py", "pytestmark = pytest.mark.e2e\ndef test_1(): pass\ndef test_2(): pass\n")
    write(nested, "e2e/test_b.py", "pytestmark = pytest.mark.e2e\ndef test_3(): pass\n")
    write(nested, "test_c.py", "def test_4(): pass\ndef test_5(): pass\n")
    write(nested, "test_d.py", "def test_6(): pass\ndef test_7(): pass\n")
    nested.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2").assert_outcomes(passed=7)
    worker = dict(line.split() for line in (nested.path / "told").read_text().splitlines())
    assert worker["test_1"] == worker["test_2"] == worker["test_3"]
    assert worker["test_4"] == worker["test_5"] != worker["test_6"] == worker["test_7"]
    collected = nested.runpytest_subprocess("-p", "no:cacheprovider", "--collect-only", "-q")
    names = [line.rpartition("::")[2] for line in collected.outlines if "::" in line]
    assert names == [f"test_{number}" for number in (4, 5, 6, 7, 1, 2, 3)]


@pytest.mark.parametrize("file", ["test_a.py", "e2e/test_a.py"])
def test_an_end_to_end_test_elsewhere_or_another_one_among_them_is_refused(nested: pytest.Pytester, file: str) -> None:
    mark = "" if file.startswith("e2e") else "@pytest.mark.e2e\n"
    write(nested, file, f"{mark}def test_1(): pass\n")
    result = nested.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*: end-to-end tests, and no others, are in a folder 'e2e'"])
