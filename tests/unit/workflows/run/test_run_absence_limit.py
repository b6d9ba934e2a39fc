"""What is taken for an absence, and what it does to the deadlines of groups."""

import pytest

from psrl.schemas.ids import Version, training_group
from psrl.workflows.calls import settings
from psrl.workflows.ledger import Ledger
from psrl.workflows.run.absence import Absence
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.sweep import interval_s

PATIENCE_S = 3600.0
GROUP = training_group(0)


def sweeps_until_late(every_s: float, most: int) -> int:
    """How many sweeps it takes to find a group that was started at the first one late."""
    absence, groups = Absence(), Groups(ledger=Ledger(staleness=1, batch_groups=1, offered_groups=2))
    groups.start(Version(0), (GROUP,), 1.0)
    groups.begun(1.0)
    for number in range(most):
        now = 1.0 + number * every_s
        if away_s := absence.seen(now):
            groups.forgive(away_s, now)
        if groups.older_than(PATIENCE_S, now):
            return number
    return most


@pytest.mark.parametrize("rare", [False, True])
def test_a_late_group_is_found_by_the_first_sweep_after_its_deadline_however_rare_they_are(rare: bool) -> None:
    every_s = interval_s(rare)
    assert sweeps_until_late(every_s, most=200) == PATIENCE_S // every_s + 1


def test_what_nobody_saw_counts_for_no_deadline() -> None:
    assert sweeps_until_late(settings.ABSENCE.total_seconds() + 1, most=200) == 200
