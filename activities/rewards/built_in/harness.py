"""Runs in the sandbox: the answer's code against its tests. One line of JSON on standard input says which.

For each test that passed it says the token that only it was told: no exit status and nothing that the code prints is
believed. A test of `asserts` or `stdin` has a process of its own, so that one which ends or holds it costs no other.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from types import CodeType
from typing import Any

MAX_OUTPUT = 1 << 24
"""Bytes of a program's output that are compared."""


class Late(BaseException):
    """No `except Exception` of the code holds it."""


def main() -> None:
    told = json.loads(sys.stdin.readline())
    says = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    results = {"asserts": asserts, "stdin": programs, "pytest": file_of_pytest}[told["form"]]
    for passed in results(told["code"], told["cases"], told["test_s"]):
        os.write(says, f"{told['token']} {int(passed)}\n".encode())


def asserts(code: str, cases: list[list[str]], test_s: float) -> Iterator[bool]:
    names: dict[str, Any] = {"__name__": "solution"}
    with limited(test_s):
        exec(compile(code, "solution.py", "exec"), names)
    for (text,) in cases:
        yield passes(compile(text, "test", "exec"), names, test_s)


def passes(test: CodeType, names: dict[str, Any], test_s: float) -> bool:
    heard, says = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            exec(test, dict(names))
            os.write(says, b"passed")
        os._exit(0)
    os.close(says)
    ready, _, _ = select.select([heard], [], [], test_s)
    passed = bool(ready) and os.read(heard, 10) == b"passed"
    os.close(heard)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return passed


def programs(code: str, cases: list[list[str]], test_s: float) -> Iterator[bool]:
    write("solution.py", code)
    for given, wanted in cases:
        # Files, not pipes: a program that says too much meets its limit, and fills nobody's memory.
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
            stdin.write(given.encode(errors="replace"))
            stdin.seek(0)
            ended = runs(stdin.fileno(), stdout.fileno(), test_s)
            stdout.seek(0)
            said = stdout.read(MAX_OUTPUT).decode(errors="replace")
        yield ended and lines(said) == lines(wanted)


def runs(stdin: int, stdout: int, test_s: float) -> bool:
    """Whether the program ended well and in time."""
    program = subprocess.Popen([sys.executable, "-s", "solution.py"], stdin=stdin, stdout=stdout, process_group=0)
    try:
        return program.wait(test_s) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def file_of_pytest(code: str, cases: list[list[str]], test_s: float) -> list[bool]:
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")  # those of the worker's packages take seconds
    import pytest

    write("solution.py", code)
    write("test_solution.py", cases[0][0])
    found: dict[str, bool] = {}

    class Plugin:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            found.update({item.nodeid: False for item in session.items})

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self) -> Iterator[None]:
            with limited(test_s):
                return (yield)

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call":
                found[report.nodeid] = report.passed
            elif report.failed:
                found[report.nodeid] = False

    pytest.main(["-q", "-p", "no:cacheprovider", "test_solution.py"], plugins=[Plugin()])
    return list(found.values())


def write(name: str, text: str) -> None:
    with open(name, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)


@contextlib.contextmanager
def limited(test_s: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, test_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
