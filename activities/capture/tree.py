"""Where in its session a request belongs: which branch it continues, or which new one it begins.

A branch only grows: a request continues one whose last turn is the request's parent and that plays no turn. Everything
else that an agent may send (an edited or compacted history, a retry of an earlier turn, a sub-agent's own conversation,
two requests side by side) begins a branch of its own, which holds no copy of what it leaves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...schemas.errors import ConversationRefused, TwoTurnsAtOnce
from .conversation import Node, Prefix


class TurnAt(NamedTuple):
    """A turn of a session, by its place."""

    branch: int
    """Index of the trajectory."""
    turn: int


@dataclass(frozen=True)
class KnownTurn:
    """A turn that is stored, as far as the decision needs it."""

    at: TurnAt
    node: Node | None
    """Null while it is in flight: what it says is not known yet."""


@dataclass(frozen=True)
class Branches:
    """The indices of an episode's branches: `first`, `first + step`, `first + 2 * step` …"""

    first: int
    """Index of the episode."""
    step: int
    """Trajectories of the group (N')."""

    def index(self, number: int) -> int:
        return self.first + number * self.step

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
        self._named: dict[Node, list[TurnAt]] = {}
        self._last: dict[int, KnownTurn] = {}
        for known in sorted(turns, key=lambda known: known.at):
            self._last[known.at.branch] = known
            if known.node is not None:
                self._named.setdefault(known.node, []).append(known.at)

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
                if self._last[at.branch].at == at:
                    return _continued(at, parent)
        return self._begun(self._branches.unused(self._last), parent)

    def place_on(self, number: int, parent: Parent | None) -> Decision:
        """The caller names the branch, counted from 0 within the session. Raises `TwoTurnsAtOnce`, and
        `ConversationRefused` where the branch is not one that the request continues."""
        branch = self._branches.index(number)
        last = self._last.get(branch)
        if last is None:
            return self._begun(branch, parent)
        if last.node is None:
            raise TwoTurnsAtOnce(
                f"branch {number} has turn {last.at.turn} in flight; allowed: one turn at a time on a branch"
            )
        if parent is None or last.at not in parent.turns:
            raise ConversationRefused(
                f"branch {number} ends with turn {last.at.turn}, which the messages do not repeat; allowed: messages "
                "that continue it, a number not used yet, or no number at all"
            )
        return _continued(last.at, parent)

    def place_apart(self) -> Decision:
        """A branch for this turn alone, for templates that render earlier turns anew each time."""
        return self._begun(self._branches.unused(self._last), None)

    def _begun(self, branch: int, parent: Parent | None) -> Decision:
        # A branch may rest on lower ones only (`docs/decisions/sessions.md`): else it says everything itself.
        if parent is None or parent.turns[0].branch > branch:
            return Decision(TurnAt(branch, 0))
        return Decision(TurnAt(branch, 0), forked=parent.turns[0], known_messages=parent.messages)


def _continued(at: TurnAt, parent: Parent) -> Decision:
    return Decision(TurnAt(at.branch, at.turn + 1), known_messages=parent.messages)
