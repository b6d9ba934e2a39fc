"""Whether instances are told of the newest version yet: `sync_and_mig_strategy.sync.seamless_train_version`. Pure.

In the first versions of a run an interruption is dear: the trainer would wait for it. So instances stay where they are
until the buffer that is trained on next is complete; but only while they can complete it, or the run would stand still.
"""

from ...schemas.ids import Version
from .state import RunState


def seamless(state: RunState) -> bool:
    """They are not told now."""
    ledger, limit = state.groups.ledger, state.config.psrl.rollout_coordination.sync_and_mig_strategy.sync
    if state.over or not limit.seamless_train_version or state.version > limit.seamless_train_version or ledger.ready:
        return False
    live = ledger.reserved_count + ledger.occupied_count
    return live >= ledger.batch_groups or any(ledger.free(Version(version)) for version in state.fleet.versions)
