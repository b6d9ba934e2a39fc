"""Everything a run carries from one execution to the next. Small: ids, counts and the ledger; no tokens."""

from typing import Any

from ...schemas.ids import GroupId, InstanceId
from ...schemas.messages.base import Message
from ...schemas.messages.data import Admission
from ...schemas.messages.run import InstanceChanged


class RunState(Message):
    admission: Admission
    ledger: dict[str, Any]
    """`Ledger.to_dict()`."""
    next_group: int = 0
    """Number of the next group to draw."""
    next_place: int = 0
    """Place of the data that is drawn next."""
    redraw: tuple[int, ...] = ()
    """Places to draw first: their groups were given up when the run ended before."""
    open_batch: tuple[GroupId, ...] = ()
    """Groups of a batch that was recorded before the run ended, and is trained first."""
    started_at: dict[GroupId, float] = {}
    """Start of every live group that is not complete, seconds since the epoch by workflow time."""
    seen_at: float = 0.0
    """When somebody last ran the workflow: an absence may fall between two executions."""
    back_at: float = 0.0
    """When it was run again after the last absence: what began before that says nothing about the task."""
    instances: dict[InstanceId, InstanceChanged] = {}
    dropped: dict[str, int] = {}
    """Groups given up so far, by reason."""
    unproductive: int = 0
    """Groups in a row that failed or were filtered; 0 after every complete one."""
    last_reasons: tuple[str, ...] = ()
    """Why the most recent unproductive groups were given up."""
    idle_since: float = 0.0
    """When the trainer began to wait for the next buffer."""
    reward_mean: float | None = None
    validation_accuracy: float | None = None
    evaluations: tuple[int, ...] = ()
    """Versions whose validation round has not reported yet."""
    paused: bool = False
    stopping: bool = False

    def with_drop(self, kind: str, reason: str, unproductive: bool) -> "RunState":
        """One more group given up."""
        dropped = {**self.dropped, kind: self.dropped.get(kind, 0) + 1}
        if not unproductive:
            return self.model_copy(update={"dropped": dropped})
        return self.model_copy(
            update={
                "dropped": dropped,
                "unproductive": self.unproductive + 1,
                "last_reasons": (*self.last_reasons, reason)[-3:],
            }
        )
