"""When the instance has little left to do: its indicator is at the threshold or below, nothing waits in its engine, and
(`check_req_before_sync`) no trajectory waits for room that it may serve as it is."""

from dataclasses import dataclass

from .....schemas.config.sync_and_mig import LoadIndicator
from ..load import INDICATORS
from .contract import SyncSnapshot, SyncVerdict


@dataclass(frozen=True, slots=True)
class StatusBased:
    indicator: LoadIndicator
    threshold: float
    check_req_before_sync: bool = True

    def __call__(self, snapshot: SyncSnapshot) -> SyncVerdict:
        own = snapshot.own
        if own.waiting:
            return SyncVerdict(False, f"{own.waiting} requests wait in its engine or are on their way there")
        suited = sum(tag <= own.version for tag in snapshot.queued)
        if self.check_req_before_sync and suited:
            return SyncVerdict(False, f"{suited} trajectories wait for room that it may serve at v{own.version}")
        value = INDICATORS[self.indicator](own)
        relation = "at most" if value <= self.threshold else "above"
        reason = f"{self.indicator} is {value:g}, {relation} the threshold of {self.threshold:g}"
        return SyncVerdict(value <= self.threshold, reason)
