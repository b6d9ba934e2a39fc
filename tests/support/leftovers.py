"""No test leaves a process behind, and none hangs for ever: a pytest plugin, named in `tests/conftest.py`.

What a test starts inherits a mark in its environment, and so does whatever that starts, also as a daemon. After the
test, marked processes are ended and the test fails, naming them. What a fixture of a wider scope starts belongs to the
session. A test that pytest-timeout cannot end (its alarm is lost in a call that never returns) ends the whole pytest
process a little later; a guard, which is a process of its own, then ends what was started.
"""

import faulthandler
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import pytest
from pytest_timeout import _get_item_settings

from tests.support.marks import MARK, SHARED, end, for_the_session

_GUARD = """
import os, select, signal, sys
mark, parent = sys.argv[1].encode(), int(sys.argv[2])
while os.getppid() == parent and not select.select([0], [], [], 1)[0]:
    pass
for entry in os.listdir("/proc"):
    try:
        if entry.isdigit() and mark in open(f"/proc/{entry}/environ", "rb").read():
            os.kill(int(entry), signal.SIGKILL)
    except OSError:
        pass
"""


class Leftovers:
    """One pytest process: a session, or a worker of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._hook = config.pluginmanager.hook
        self._grace_s, self._last_resort_s = (
            float(config.getini(key)) for key in ("leftovers_grace_s", "last_resort_s")
        )
        self._session = uuid4().hex
        command = [sys.executable, "-I", "-S", "-c", _GUARD, f"{MARK}={self._session}/", str(os.getpid())]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._stderr = os.fdopen(os.dup(2), "w")
        self._tests = 0
        os.environ[MARK] = f"{self._session}/{SHARED}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._tests += 1
        os.environ[MARK] = f"{self._session}/{self._tests}"
        timeout = _get_item_settings(item).timeout
        if timeout:
            faulthandler.dump_traceback_later(timeout + self._last_resort_s, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()
            os.environ[MARK] = f"{self._session}/{SHARED}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        with nullcontext() if fixturedef.scope == "function" else for_the_session():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            self._hook.pytest_timeout_cancel_timer(item=item)
            if left := end(os.environ[MARK], self._grace_s):
                pytest.fail("the test left processes behind, which were ended: " + "; ".join(left), pytrace=False)

    def pytest_unconfigure(self) -> None:
        """The guard ends what the session's fixtures have left."""
        del os.environ[MARK]
        self._guard.communicate()
        self._stderr.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leftovers_grace_s", "how long processes that a test has left may take to end", default="10")
    parser.addini("last_resort_s", "from a test's timeout to the end of its pytest process", default="60")


def pytest_configure(config: pytest.Config) -> None:
    if sys.platform == "linux":
        config.pluginmanager.register(Leftovers(config))
