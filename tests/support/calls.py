"""The calls of workflows with other limits: seconds for minutes."""

from dataclasses import replace
from datetime import timedelta

import pytest

from psrl.workflows.calls import table
from psrl.workflows.calls.call import Call


def shorten(
    monkeypatch: pytest.MonkeyPatch,
    *,
    heartbeat: timedelta | None = None,
    pickup: timedelta | None = None,
    patience: timedelta | None = None,
) -> None:
    """At most these, where the table has any. For workflows outside the sandbox, which would import the table anew."""
    for name, call in list(vars(table).items()):
        if isinstance(call, Call):
            shortened = replace(
                call,
                heartbeat=_least(call.heartbeat, heartbeat),
                pickup=_least(call.pickup, pickup),
                patience=_least(call.patience, patience),
            )
            monkeypatch.setattr(table, name, shortened)


def _least(own: timedelta | None, limit: timedelta | None) -> timedelta | None:
    return own if own is None or limit is None else min(own, limit)
