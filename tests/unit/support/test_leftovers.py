"""The plugin that ends what a test has left, in nested pytest runs."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.marks import MARK

REPOSITORY = Path(__file__).parents[3]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
DAEMON = f"""
import subprocess, sys
subprocess.Popen({SLEEPER!r}, start_new_session=True)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Nested sessions have the plugin, a timeout of 2 s and a last resort 1 s later."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest('pytest_plugins = ("tests.support.leftovers",)')
    pytester.makeini(
        "[pytest]\ntimeout = 2\ntimeout_method = signal\nlast_resort_s = 1\nleftovers_grace_s = 1\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    return pytester


def go(run: pytest.Pytester, test: str) -> pytest.RunResult:
    run.makepyfile(f"import os, subprocess, sys, time, pytest\nSLEEPER, DAEMON = {SLEEPER!r}, {DAEMON!r}\n{test}")
    return run.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", "-q")


def sleepers() -> list[int]:
    """Of this test, through any number of nested sessions and daemons."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(Path.cwd()) in os.readlink(process / "cwd") and b"sleep(600)" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("left", ["subprocess.Popen(SLEEPER)", "subprocess.run([sys.executable, '-c', DAEMON])"])
def test_a_process_that_a_test_has_left_is_ended_and_fails_the_test(run: pytest.Pytester, left: str) -> None:
    result = go(run, f"def test_leaves():\n    {left}\n\ndef test_next():\n    pass\n")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*the test left processes behind, which were ended: * -c import time; time.sleep(600)"]
    )
    assert sleepers() == []


def test_a_process_that_its_test_ends_or_that_the_session_shares_is_no_leftover(run: pytest.Pytester) -> None:
    result = go(
        run,
        """
@pytest.fixture(scope="session")
def server():
    return subprocess.Popen(SLEEPER)

def test_ends_its_own(server):
    with subprocess.Popen(SLEEPER) as process:
        process.kill()

def test_finds_the_shared_one(server):
    assert server.poll() is None
""",
    )
    result.assert_outcomes(passed=2)
    assert sleepers() == [], "ended with the session"


def test_a_server_of_the_session_that_a_test_starts_again_is_no_leftover(run: pytest.Pytester) -> None:
    result = go(
        run,
        """
from tests.support.marks import for_the_session

def test_starts_it_again():
    with for_the_session():
        subprocess.Popen(SLEEPER)
""",
    )
    result.assert_outcomes(passed=1)
    assert sleepers() == [], "ended with the session"


def test_a_test_that_waits_for_ever_fails_and_what_it_started_is_ended(run: pytest.Pytester) -> None:
    result = go(run, "def test_waits():\n    subprocess.Popen(SLEEPER).wait()\n\ndef test_next():\n    pass\n")
    result.assert_outcomes(passed=1, failed=1, errors=1)
    assert sleepers() == []


DEAF = """
import signal

def test_cannot_be_ended():
    subprocess.Popen(SLEEPER)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)
"""


def test_a_test_that_even_its_timeout_cannot_end_ends_its_process_and_all_it_started(run: pytest.Pytester) -> None:
    result = go(run, DEAF)
    assert result.ret == 1
    result.stderr.fnmatch_lines(["Timeout (0:00:03)!", "*in test_cannot_be_ended"])
    while sleepers():
        time.sleep(0.05)


def test_a_session_that_is_killed_leaves_nothing(run: pytest.Pytester) -> None:
    run.makepyfile(
        f"import os, subprocess, signal\n\ndef test_dies():\n    subprocess.Popen({SLEEPER!r})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert run.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist").ret == -signal.SIGKILL
    while sleepers():
        time.sleep(0.05)


def test_this_session_has_the_plugin() -> None:
    assert MARK in os.environ
