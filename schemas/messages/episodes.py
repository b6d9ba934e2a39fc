"""Episodes: how one attempt at a prompt, in one turn or many, came to its end.

Written by whoever plays episodes of several turns, into the row of the episode's first branch; read by scoring.
"""

from enum import StrEnum
from typing import Any

from .base import Message


class TerminateReason(StrEnum):
    """Why an episode ended. The first three are ends like any other; an episode that ended otherwise has failed."""

    FINISHED = "finished"
    """The environment is done, or the agent returned."""
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    """No room for another token."""
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    ENV_TIMEOUT = "env_timeout"
    """A step of the environment took longer than it may, on every attempt."""
    TRAJECTORY_TIMEOUT = "trajectory_timeout"
    """The episode took longer than it may."""
    ROLLOUT_ERROR = "rollout_error"
    """The environment or the agent failed, on every attempt."""
    UNKNOWN = "unknown"
    """It ended without a turn."""
    DROPPED = "dropped"
    """Its agent has said that it is not to be trained on."""
    ABORTED = "aborted"
    """Nobody needs it any more."""

    @property
    def worth_another(self) -> bool:
        """Whether the episode may be begun anew, while attempts are left: it failed, and nobody decided to drop it."""
        return not self.success and self not in (TerminateReason.DROPPED, TerminateReason.ABORTED)

    @property
    def success(self) -> bool:
        """Whether the episode may be scored."""
        return self in (
            TerminateReason.FINISHED,
            TerminateReason.MAX_RESPONSE_LENGTH_EXCEEDED,
            TerminateReason.MAX_TURNS_EXCEEDED,
        )


class EpisodeOutcome(Message):
    """`trajectories.outcome` of an episode's first branch."""

    ended: TerminateReason
    reward: float | None = None
    """What the environment or the agent itself says it is worth, all its steps together; null: nothing."""
    info: dict[str, Any] = {}
    """What else it says, as JSON: for the reward function."""
