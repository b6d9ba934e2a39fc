"""The policy that a run has chosen."""

from .....schemas.config.sync_and_mig import Migration
from .balance import Balance
from .contract import MigrationPolicy


def migration_policy(chosen: Migration) -> MigrationPolicy | None:
    """`None`: requests stay where they are."""
    if not chosen.enable:
        return None
    assert chosen.threshold is not None
    return Balance(chosen.indicator, chosen.threshold, chosen.stop_indicator, chosen.stop_threshold or 0.0)
