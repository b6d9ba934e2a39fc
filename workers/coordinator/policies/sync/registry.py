"""The policy that a run has chosen."""

from collections.abc import Callable, Mapping

from .....schemas.config.sync_and_mig import LoadIndicator, SyncAndMigStrategy, SyncIndicator, SyncMethod
from .contract import SyncPolicy, SyncSnapshot, SyncVerdict
from .greedy import greedy
from .hypothesis_test import hypothesis_test
from .needed import needed
from .status_based import StatusBased

_Maker = Callable[[SyncAndMigStrategy], SyncPolicy]


def _status_based(chosen: SyncAndMigStrategy) -> SyncPolicy:
    sync = chosen.sync
    assert sync.threshold is not None
    return StatusBased(LoadIndicator(sync.indicator.value), sync.threshold, sync.check_req_before_sync)


SYNC: Mapping[SyncIndicator, _Maker] = {
    SyncIndicator.REQUEST_NUM: _status_based,
    SyncIndicator.THROUGHPUT: _status_based,
    SyncIndicator.KV_CACHE: _status_based,
    SyncIndicator.HYPOTHESIS_TEST: lambda _: hypothesis_test,
}
"""With `method=status_based`."""


def sync_policy(chosen: SyncAndMigStrategy) -> SyncPolicy:
    """The policy, unless a sync is needed at once."""
    policy = greedy if chosen.method is SyncMethod.GREEDY else SYNC[chosen.sync.indicator](chosen)

    def verdict(snapshot: SyncSnapshot) -> SyncVerdict:
        why = needed(snapshot)
        return SyncVerdict(True, why) if why else policy(snapshot)

    return verdict
