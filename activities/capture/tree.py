"""Where in its session a request belongs: which branch it continues, or which new one it begins.

A branch only grows: a request continues one whose last turn is the request's parent and that plays no turn. Everything
else that an agent may send (an edited or compacted history, a retry of an earlier turn, a sub-agent's own conversation,
two requests side by side) begins a branch of its own, which holds no copy of what it leaves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...schemas.errors import ConversationRefused, TurnInFlight
from ...schemas.messages.rollout import SegmentEnd
from .conversation import Prefix

MAX_BRANCHES = 10_000
"""Far more than any agent begins."""


@dataclass(frozen=True, order=True)
class TurnAt:
    """A turn of a session, by its place."""

    index: int
    """Of the trajectory, which the branch is."""
    turn: int


class KnownTurn(Protocol):
    """A turn as the store knows it."""

    @property
    def index(self) -> int: ...

    @property
    def turn(self) -> int: ...

    @property
    def node(self) -> str | None:
        """Null until its answer has been given to the agent."""

    @property
    def end(self) -> SegmentEnd | None:
        """Null while it is in flight, and of one that was given up."""

    @property
    def key(self) -> str | None:
        """Of the request that waits for it or has its answer; null: it was given up."""


@dataclass(frozen=True)
class Branches:
    """The indices of an episode's branches: `episode`, `episode + episodes`, `episode + 2 * episodes` …"""

    episode: int
    """The index of the first branch."""
    episodes: int
    """Of the group (N')."""

    def index(self, number: int) -> int:
        return self.episode + number * self.episodes

    def unused(self, taken: Iterable[int]) -> int:
        used = set(taken)
        return next(index for number in range(len(used) + 1) if (index := self.index(number)) not in used)


@dataclass(frozen=True)
class Decision:
    """Where the request is played."""

    at: TurnAt
    forked: TurnAt | None = None
    """The turn after which the branch leaves another; only where the branch is new."""
    known_messages: int = 0
    """Messages of the request that are in the context already; those after it are rendered, none of them again."""


@dataclass(frozen=True)
class Parent:
    """The longest known beginning of a request."""

    messages: int
    turns: tuple[TurnAt, ...]
    """Every turn that said just this, lowest branch first: a policy may say the same twice."""


class Tree:
    """The known turns of one session. Promises: a turn is on one branch, and a branch's turns are answered in order."""

    def __init__(self, branches: Branches, turns: Iterable[KnownTurn]) -> None:
        self._branches = branches
        self._named: dict[str, list[TurnAt]] = {}
        self._last: dict[int, KnownTurn] = {}
        for known in sorted(turns, key=lambda known: (known.index, known.turn)):
            self._last[known.index] = known
            if known.node is not None:
                self._named.setdefault(known.node, []).append(_at(known))

    def parent(self, prefixes: Sequence[Prefix]) -> Parent | None:
        """`prefixes`: the answered ones of the request, longest first."""
        for prefix in prefixes:
            if found := self._named.get(prefix.node):
                return Parent(prefix.messages, tuple(found))
        return None

    def place(self, parent: Parent | None) -> Decision:
        """The caller leaves it to us: the lowest branch that the request continues, else a new one."""
        if parent is not None:
            for at in parent.turns:
                # A turn in flight is its branch's last, and so takes its parent's place here.
                if _at(self._last[at.index]) == at:
                    return _continued(at, parent)
        return self._begun(self._branches.unused(self._last), parent)

    def place_on(self, number: int, parent: Parent | None) -> Decision:
        """The caller names the branch, counted from 0 within the session. Raises `TurnInFlight`, and
        `ConversationRefused` where the branch is not one that the request continues."""
        if number >= MAX_BRANCHES:
            raise ConversationRefused(f"branch {number}; allowed: 0 to {MAX_BRANCHES - 1}")
        index = self._branches.index(number)
        last = self._last.get(index)
        if last is None:
            return self._begun(index, parent)
        if last.end is None and last.key is None:
            raise ConversationRefused(
                f"branch {number} ends with turn {last.turn}, which failed and which nothing follows; allowed: a "
                "number not used yet, or no number at all"
            )
        if last.end is None:
            raise TurnInFlight(
                f"branch {number} has turn {last.turn} in flight; allowed: one turn at a time on a branch"
            )
        if parent is None or _at(last) not in parent.turns:
            raise ConversationRefused(
                f"branch {number} ends with turn {last.turn}, which the messages do not repeat; allowed: messages "
                "that continue it, a number not used yet, or no number at all"
            )
        return _continued(_at(last), parent)

    def place_apart(self) -> Decision:
        """A branch for this turn alone, for templates that render earlier turns anew each time."""
        return self._begun(self._branches.unused(self._last), None)

    def _begun(self, index: int, parent: Parent | None) -> Decision:
        # A branch may rest on lower ones only (`docs/decisions/sessions.md`): else it says everything itself.
        if parent is None or parent.turns[0].index > index:
            return Decision(TurnAt(index, 0))
        return Decision(TurnAt(index, 0), forked=parent.turns[0], known_messages=parent.messages)


def _at(known: KnownTurn) -> TurnAt:
    return TurnAt(known.index, known.turn)


def _continued(at: TurnAt, parent: Parent) -> Decision:
    return Decision(TurnAt(at.index, at.turn + 1), known_messages=parent.messages)
