"""States of the rows that a run leaves in the store: a sentence per value, spelled nowhere else.

Written by activities, read by the audit, reports and the trainer. The database refuses every other value; a value that
is added or removed needs a migration.
"""

from enum import StrEnum


class GroupStatus(StrEnum):
    """What became of a group."""

    LIVE = "live"
    """It may still be trained on."""
    TRAINED = "trained"
    """It is in a batch."""
    FILTERED = "filtered"
    """The group filter found nothing to learn in it."""
    FAILED = "failed"
    """Fewer than N of its trajectories could be finished and scored."""
    ABORTED = "aborted"
    """The end of the run cut it short: its prompt is drawn again when the run is resumed."""
    DROPPED = "dropped"
    """The ledger gave it up, so that the others could meet their deadlines."""
    DEADLINE = "deadline"
    """It gave no report in time."""


GROUP_EXITS = tuple(status for status in GroupStatus if status not in (GroupStatus.LIVE, GroupStatus.TRAINED))
"""Statuses of groups that left without being trained on."""


class TrajectoryStatus(StrEnum):
    """How far a trajectory has come."""

    PENDING = "pending"
    """Not all of its turns are finished."""
    FINISHED = "finished"
    """Every turn is finished; it waits for its reward."""
    SCORED = "scored"
    """It has a reward."""
    FAILED = "failed"
    """Its reward could not be computed, and is not 0.0; or its environment failed."""
    ABORTED = "aborted"
    """Its group was given up before it had a reward."""


class SegmentKind(StrEnum):
    """Where the tokens of a segment come from."""

    SAMPLED = "sampled"
    """The engine sampled them: they have log-probs and a version, and are trained on."""
    ENVIRONMENT = "environment"
    """The environment or the user answered with them: context of what follows, never trained on (mask 0)."""


class SessionStatus(StrEnum):
    """Life of a session. Its workflow decides; the row in the store follows."""

    RUNNING = "running"
    """Turns are played as they are asked for."""
    HUNG = "hung"
    """The next turn waits until somebody lets the session continue."""
    CLOSING = "closing"
    """The turn in flight, if any, may still end; nothing new is taken."""
    CLOSED = "closed"
    """Over: what was sampled is kept."""
