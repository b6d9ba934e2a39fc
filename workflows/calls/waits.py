"""What a run waits for, as people see it: each wait with its owner and its deadline (L11).

Owned by `TrainingRun`. A view, never decided upon: the deadlines are kept by the calls that these waits describe.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.messages.run import Wait


class Waits:
    def __init__(self) -> None:
        self._open: list[Wait] = []

    @property
    def current(self) -> tuple[Wait, ...]:
        """In order of their beginning."""
        return tuple(self._open)

    @contextmanager
    def during(self, what: str, owner: str, limit: timedelta | None = None, otherwise: str = "") -> Iterator[None]:
        """`limit` is when the call inside gives up; none where a person decides."""
        now = workflow.now()
        deadline = None if limit is None else now + limit
        wait = Wait(what=what, owner=owner, since=now, deadline=deadline, otherwise=otherwise)
        self._open.append(wait)
        try:
            yield
        finally:
            self._open.remove(wait)
