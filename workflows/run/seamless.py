"""Whether instances are told of the newest version yet: `sync_and_mig_strategy.sync.seamless_train_version`. Pure.

In the first versions of a run an interruption is dear: the trainer would wait for it. So instances stay where they are
until the buffer that is trained on next is complete; but only while they can complete it, or the run would stand still.
"""

from collections.abc import Collection

from ...schemas.ids import Version
from ..ledger import Ledger
from .state import RunState


def seamless(state: RunState) -> bool:
    """They are not told now."""
    sync = state.config.psrl.rollout_coordination.sync_and_mig_strategy.sync
    return not state.over and kept_back(state.groups.ledger, sync.seamless_train_version, state.fleet.versions)


def kept_back(ledger: Ledger, limit: int, served: Collection[int]) -> bool:
    """`limit`: of the versions; `served`: by any instance. The simulator asks, too."""
    if not limit or ledger.version > limit or ledger.ready:
        return False
    live = ledger.reserved_count + ledger.occupied_count
    return live >= ledger.batch_groups or any(ledger.free(Version(version)) for version in served)
