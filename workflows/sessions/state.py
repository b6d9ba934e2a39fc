"""What a session is: its status, its branches, and which turn may begin. Pure; `Session` acts on it, and it is carried
whole from one execution to the next.

Promises: a hung session begins no turn, and a turn in flight is never cut by a hang (L7); a branch has one turn in
flight; a turn that was answered is answered the same way again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ...schemas.errors import InvariantViolated, SessionClosed, TurnInFlight
from ...schemas.ids import InstanceId, trajectory_name
from ...schemas.messages.sessions import FIRST_CALL, AskedTurn, BranchRecord, PlayedTurn
from ...schemas.status import SessionStatus
from ..machine import Machine, Table
from ..run.carried import Carried

_S = SessionStatus
LEGAL: Table[SessionStatus] = {
    _S.RUNNING: frozenset({_S.HUNG, _S.CLOSING}),
    _S.HUNG: frozenset({_S.RUNNING, _S.CLOSING}),
    _S.CLOSING: frozenset({_S.CLOSED}),
    _S.CLOSED: frozenset(),
}


class Branch(Carried):
    """One sequence of turns."""

    index: int
    turns: int = 0
    """Finished ones."""
    calls: int = FIRST_CALL
    tokens: int = 0
    versions: list[int] = []
    instance: InstanceId | None = None
    last: PlayedTurn | None = None
    in_flight: int | None = None
    """Number of the turn."""

    def record(self) -> BranchRecord:
        return BranchRecord(
            index=self.index,
            turns=self.turns,
            tokens=self.tokens,
            versions=tuple(self.versions),
            instance=self.instance,
            in_flight=self.in_flight is not None,
        )

    def line(self) -> str:
        """Of the trace in the web UI."""
        versions = "→".join(f"v{version}" for version in self.versions) or "-"
        now = "" if self.in_flight is None else f", turn {self.in_flight + 1} in flight"
        where = self.instance or "-"
        return f"{trajectory_name(self.index)}: {self.turns} turns, {self.tokens} tokens, {versions}, {where}{now}"


class SessionState(Carried):
    status: SessionStatus = SessionStatus.RUNNING
    hang_pending: bool = False
    reason: str = ""
    """Why it is hung or closed."""
    branches: dict[int, Branch] = {}
    first_call: int = FIRST_CALL
    """Of every branch."""
    pin: InstanceId | None = None
    """Where the next turn is to begin."""
    left_s: float = 0.0
    """Of the session's time, at the end of an execution."""
    changes: int = 0
    """Rises with everything that somebody may be waiting for."""

    @property
    def in_flight(self) -> bool:
        return any(branch.in_flight is not None for branch in self.branches.values())

    @property
    def hung(self) -> bool:
        return self.status is SessionStatus.HUNG

    @property
    def closing(self) -> bool:
        return self.status in (SessionStatus.CLOSING, SessionStatus.CLOSED)

    # --- what people and the coordinator ask -------------------------------------------------------------------------

    def hang(self, reason: str) -> None:
        """At once, or when the turns in flight have ended. One that is closing does not heed it."""
        if self.closing or self.hung:
            return
        self.reason, self.hang_pending = reason, self.in_flight
        if not self.in_flight:
            self._to(SessionStatus.HUNG)
        self.changes += 1

    def go_on(self, instance: InstanceId | None) -> None:
        """End a hang or take back one that is pending; what is running goes on, and heeds the instance."""
        if self.closing:
            return
        if self.hung:
            self._to(SessionStatus.RUNNING)
        self.hang_pending, self.reason, self.pin = False, "", instance
        self.changes += 1

    def close(self, reason: str) -> None:
        """Once: what it was closed for first is kept."""
        if not self.closing:
            self._to(SessionStatus.CLOSING)
            self.hang_pending, self.reason = False, reason
            self.changes += 1

    def closed(self) -> None:
        self._to(SessionStatus.CLOSED)

    # --- turns -------------------------------------------------------------------------------------------------------

    def answered(self, asked: AskedTurn) -> PlayedTurn | None:
        """Of a turn that was played before. Raises `InvariantViolated` when a newer one was played since: who asks for
        it has its answer in the store."""
        branch = self.branches.get(asked.index)
        if branch is None or asked.turn >= branch.turns:
            return None
        if branch.last is not None and branch.last.turn == asked.turn:
            return branch.last
        raise InvariantViolated(f"turn {asked.turn} of branch {asked.index} was answered before turn {branch.turns}")

    def check(self, asked: AskedTurn) -> None:
        """Raises `SessionClosed` or `TurnInFlight` when the turn cannot be taken, or cannot any more."""
        if self.closing:
            raise SessionClosed(f"the session is {self.status}: {self.reason or 'it was closed'}")
        branch = self.branches.get(asked.index)
        if branch is not None and branch.in_flight not in (None, asked.turn):
            raise TurnInFlight(
                f"branch {asked.index} has turn {branch.in_flight} in flight; turn {asked.turn} has to wait for it"
            )
        expected = branch.turns if branch else 0
        if asked.turn > expected:
            raise InvariantViolated(f"branch {asked.index} comes to turn {expected}; asked for was turn {asked.turn}")

    @contextmanager
    def flight(self, asked: AskedTurn) -> Iterator[Branch]:
        """The turn, from its first call until it ended in whatever way."""
        self.check(asked)
        branch = self.branches.setdefault(asked.index, Branch(index=asked.index, calls=self.first_call))
        if branch.in_flight is not None:
            raise TurnInFlight(f"turn {asked.turn} of branch {asked.index} is in flight already")
        branch.in_flight = asked.turn
        self.changes += 1
        try:
            yield branch
        finally:
            branch.in_flight = None
            self.changes += 1
            if self.hang_pending and not self.in_flight:
                self.hang_pending = False
                self._to(SessionStatus.HUNG)

    def played(self, turn: PlayedTurn) -> None:
        branch = self.branches[turn.index]
        branch.last, branch.turns, branch.instance = turn, turn.turn + 1, turn.instance
        branch.tokens += turn.tokens
        branch.versions += [version for version in turn.versions if version not in branch.versions]

    def lines(self) -> list[str]:
        """The trace: its head, then a line per branch."""
        pending = ", hangs after the turn in flight" if self.hang_pending else ""
        head = f"**{self.status}**{pending}" + (f": {self.reason}" if self.reason else "")
        return [head, "", *(f"- {self.branches[index].line()}" for index in sorted(self.branches))]

    def _to(self, status: SessionStatus) -> None:
        machine = Machine("session", LEGAL, self.status)
        machine.to(status)
        self.status = machine.state
