"""The restart budget of one engine and its quarantine, on a clock of their own."""

import pytest

from psrl.schemas.messages.run import EngineRecord
from psrl.workflows.calls import settings
from psrl.workflows.rollout.budget import Budget

HEALS_S = 100.0


def budget(allowed: int = 2, record: EngineRecord | None = None) -> Budget:
    return Budget(allowed, HEALS_S, record or EngineRecord())


def failing(kept: Budget, *times: float) -> Budget:
    for at in times:
        kept.failed(at)
    return kept


def test_the_failure_beyond_the_budget_quarantines() -> None:
    kept = failing(budget(), 1, 2)
    assert not kept.quarantined
    kept.failed(3)
    assert (kept.quarantined, kept.in_vain_s(13)) == (True, 10)


def test_a_quarantine_ends_by_service_alone() -> None:
    kept = failing(budget(), 1, 2, 3, 40, 100)
    assert kept.in_vain_s(100) == 97
    kept.served(110)
    assert not kept.quarantined


def test_a_moment_of_service_does_not_stop_the_time_in_vain() -> None:
    """Nor does it count itself: an engine may serve for hours before somebody asks it for anything."""
    kept = failing(budget(allowed=0), 0)
    kept.served(30)
    assert kept.on_trial
    kept.failed(90)
    assert kept.in_vain_s(150) == 30 + 60


def test_tokens_end_the_trial() -> None:
    kept = failing(budget(allowed=0), 0)
    kept.served(30)
    kept.useful()
    assert not kept.on_trial
    kept.failed(40)
    assert kept.in_vain_s(40) == 0


def test_tokens_of_an_engine_that_does_not_serve_prove_nothing() -> None:
    kept = failing(budget(allowed=0), 0)
    kept.useful()
    assert kept.in_vain_s(30) == 30


@pytest.mark.parametrize(("served_s", "failures", "in_vain_s"), [(HEALS_S - 1, 2, 30.0), (HEALS_S, 1, 0.0)])
def test_long_service_at_a_stretch_heals(served_s: float, failures: int, in_vain_s: float) -> None:
    kept = failing(budget(allowed=0), 0)
    kept.served(30)
    kept.served(30 + served_s / 2)  # after a sync
    kept.failed(30 + served_s)
    assert (kept.failures, kept.in_vain_s(30 + served_s)) == (failures, in_vain_s)


def test_a_stretch_of_service_begins_anew_after_a_failure() -> None:
    kept = budget()
    kept.served(0)
    kept.failed(HEALS_S / 2)
    kept.served(HEALS_S / 2)
    kept.failed(HEALS_S)
    assert kept.failures == 2


def test_pauses_double_up_to_their_limits_before_and_in_quarantine() -> None:
    kept, pauses = budget(allowed=6), []
    for at in range(13):
        kept.failed(at)
        pauses.append(kept.pause_s)
    assert pauses == [2, 4, 8, 16, 30, 30, 30, 60, 120, 240, 480, 600, 600]
    assert (settings.RESTART_PAUSE_MAX_S, settings.PROBE_PAUSE_MAX_S) == (30, 600)


def test_a_failure_for_good_uses_up_the_whole_budget_and_doubles_on_in_quarantine() -> None:
    kept = budget()
    kept.failed(0, for_good=True)
    assert (kept.quarantined, kept.pause_s) == (True, 30)
    kept.failed(30, for_good=True)
    assert kept.pause_s == 60


@pytest.mark.parametrize("served", [False, True])
def test_nothing_is_lost_at_continue_as_new(served: bool) -> None:
    kept = failing(budget(allowed=0), 0, 7)
    if served:
        kept.served(20)
    again = budget(0, EngineRecord.model_validate_json(kept.record(25).model_dump_json()))
    assert (again.failures, again.quarantined, again.on_trial) == (2, not served, True)
    assert again.in_vain_s(40) == kept.in_vain_s(40)
    again.failed(25 + HEALS_S)
    assert again.failures == (1 if served else 3)
