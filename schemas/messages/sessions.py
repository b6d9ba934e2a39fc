"""Messages of a session: its start, its turns, its signals, and what it tells of itself."""

from typing import Any

from ..ids import GroupId, InstanceId, RunId, SessionId
from ..status import SessionStatus
from .base import Message
from .rollout import Placement, Sampling, SegmentEnd
from .run import RolloutSettings

FIRST_CALL = 1
"""Of a branch: number 0 says that the store can hold nothing yet, and it holds what the agent said."""


class SessionLimits(Message):
    """Every wait of a session has an end (L11). Only time in which somebody ran its workflow counts."""

    timeout_s: float
    """Of the whole session."""
    idle_s: float
    """Without a turn in flight: the agent is taken for gone."""
    hang_s: float
    """Hung: it continues by itself."""
    drain_s: float
    """Closing: how long the turns in flight may take to end."""


class StartSession(Message):
    """Input of the `Session` workflow."""

    run_id: RunId
    session_id: SessionId
    group_id: GroupId
    version_tag: int
    rollout: RolloutSettings
    limits: SessionLimits
    first_call: int = FIRST_CALL
    """Of every branch. A session that takes over rows of an earlier one begins above its numbers, so that fencing keeps
    late results of that out."""
    carried: dict[str, Any] | None = None
    """`SessionState` of the execution that continued as this one."""


class AskedTurn(Message):
    """Update `turn`: play a turn that is in the store with what the agent said. Its id is the key of the request."""

    index: int
    """The branch that it continues."""
    turn: int
    sampling: Sampling
    placements: tuple[Placement, ...] = ()
    """Where it begins, if the gateway found room; otherwise the session asks."""


class PlayedTurn(Message):
    """Answer to `turn`. The tokens are in the store."""

    index: int
    turn: int
    end: SegmentEnd
    tokens: int
    versions: tuple[int, ...]
    """Of its segments, oldest first."""
    instance: InstanceId


class HangSession(Message):
    """Signal `hang`: start no further turn. One in flight is not cut (L7)."""

    reason: str = ""


class ContinueSession(Message):
    """Signal `continue`: end a hang, or take back one that waits for the turn in flight."""

    instance: InstanceId | None = None
    """Where the next turn is to begin, if there is room; used once."""


class CloseSession(Message):
    """Signal `close`: no further turn; those in flight may end within the session's limit."""

    reason: str = ""
    cut: bool = False
    """Nobody waits for the turns in flight: they are cut at once."""


class BranchRecord(Message):
    """One sequence of a session."""

    index: int
    turns: int
    """Finished ones."""
    tokens: int
    """Sampled."""
    versions: tuple[int, ...]
    instance: InstanceId | None = None
    """That played the newest turn."""
    in_flight: bool = False


class SessionRecord(Message):
    """Query `record`, and the result of the workflow."""

    run_id: RunId
    session_id: SessionId
    group_id: GroupId
    status: SessionStatus
    hang_pending: bool = False
    """It hangs when the turn in flight has ended."""
    reason: str = ""
    branches: tuple[BranchRecord, ...] = ()
