"""Messages of the environments that answer the policy between its turns."""

from typing import Any

from ..ids import GroupId, RunId
from .base import Message, Said
from .episodes import TerminateReason


class StepEnvironment(Message):
    """Let the environment of one trajectory answer a turn. Idempotent: asked again, it says what is stored."""

    run_id: RunId
    group_id: GroupId
    index: int
    turn: int
    """Of the policy; it is complete."""


class EnvironmentStep(Message):
    """What comes after the turn. The environment's tokens are in the store."""

    ended: TerminateReason | None = None
    """Null: another turn is to be played. Otherwise the outcome is in the store."""
    error: Said = ""
    """Of an episode that failed."""
    max_tokens: int = 0
    """What the next turn may sample."""
    queue: str = ""
    """Of the process that keeps the environment for the next step; empty when it keeps none."""


class CloseEnvironments(Message):
    """Close what this process keeps of a group's environments. Idempotent."""

    run_id: RunId
    group_id: GroupId
    indices: tuple[int, ...]


class StoredStep(Message):
    """`turns.step`: what an environment made of a turn, with what is needed to make the environment anew."""

    done: bool = True
    """False: it was begun, and must not be repeated."""
    reward: float | None = None
    info: dict[str, Any] = {}
    ended: TerminateReason | None = None
    error: Said = ""
    max_tokens: int = 0
    """What the next turn may sample."""
    state: Any = None
    """Of the environment after it, where it has a state that can be saved."""
