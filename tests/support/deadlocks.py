"""A crowded machine is no deadlock: a pytest plugin, named in `tests/conftest.py`.

The SDK takes a workflow that has not yielded for two seconds for deadlocked, and throws an exception into its thread.
On a machine that stood still for as long, that is wherever the thread happens to be: it was seen in the `__del__` of
an event loop, which failed the test that was running. A workflow that truly never yields still ends its test, by the
test's own time limit.
"""

from functools import wraps
from typing import Any

from temporalio.worker._workflow import _WorkflowWorker

TAKEN_FOR_DEADLOCKED_S = 60
"""The SDK has no option between its two seconds and never."""


def pytest_configure() -> None:
    starts = _WorkflowWorker.__init__

    @wraps(starts)
    def patient(worker: _WorkflowWorker, *args: Any, **options: Any) -> None:
        starts(worker, *args, **options)
        if not hasattr(worker, "_deadlock_timeout_seconds"):
            raise AttributeError("the SDK holds its limit of a workflow task elsewhere")
        worker._deadlock_timeout_seconds = TAKEN_FOR_DEADLOCKED_S

    _WorkflowWorker.__init__ = patient  # type: ignore[method-assign]
