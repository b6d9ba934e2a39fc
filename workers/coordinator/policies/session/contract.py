"""What a session policy is asked, and what it answers.

A policy only decides; the session's own workflow hangs it at its next turn boundary and lets it continue.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .....schemas.ids import InstanceId, SessionId


class Doing(StrEnum):
    """What a session does now."""

    GENERATE = "generate"
    """A turn is in flight."""
    ENV = "env"
    """Its agent or environment is at work: it holds KV cache and samples nothing."""


@dataclass(frozen=True, slots=True)
class InstanceRoom:
    """KV cache of one instance, in tokens."""

    capacity: int
    used: int
    """As measured."""


@dataclass(frozen=True, slots=True)
class SessionView:
    session: SessionId
    doing: Doing
    tokens: int
    """The most that it has had in its context: prompt and answer."""
    instance: InstanceId
    hung: bool = False


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    instances: Mapping[InstanceId, InstanceRoom]
    sessions: Sequence[SessionView]
    """One on an instance that is not there is left alone."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    hang: Sequence[SessionId] = ()
    """In the order in which they were chosen."""
    go_on: Mapping[SessionId, InstanceId] = field(default_factory=dict)
    """Hung ones that continue, and where there is room for them."""
    too_large: Sequence[SessionId] = ()
    """Hung ones that no instance they may continue on could ever hold: waiting is of no use."""


SessionPolicy = Callable[[SessionSnapshot], SessionPlan]
