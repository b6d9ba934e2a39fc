"""The life of one trajectory as a state machine with a table of legal transitions. Pure; used by `Episodes`."""

from dataclasses import dataclass, field
from enum import StrEnum

from ...schemas.errors import InvariantViolated
from ...schemas.ids import trajectory_name
from ...schemas.messages.rollout import GenerateResult


class TrajectoryState(StrEnum):
    ROUTING = "routing"
    """Waits for an instance that may serve it and has room."""
    GENERATING = "generating"
    """A segment is being produced."""
    INTERRUPTED = "interrupted"
    """A segment ended before the turn did; its tokens are stored."""
    FINISHED = "finished"
    """All turns are complete; not yet scored."""
    SCORED = "scored"
    """Has a reward. Final."""
    FAILED = "failed"
    """Cannot be finished or scored. Final; never a reward of 0.0."""
    ABORTED = "aborted"
    """No longer needed: enough siblings are scored, or the group was given up. Final."""


_S = TrajectoryState
LEGAL: dict[TrajectoryState, frozenset[TrajectoryState]] = {
    _S.ROUTING: frozenset({_S.GENERATING, _S.FAILED, _S.ABORTED}),
    _S.GENERATING: frozenset({_S.INTERRUPTED, _S.FINISHED, _S.FAILED, _S.ABORTED}),
    _S.INTERRUPTED: frozenset({_S.ROUTING, _S.FAILED, _S.ABORTED}),
    _S.FINISHED: frozenset({_S.SCORED, _S.FAILED, _S.ABORTED}),
    _S.SCORED: frozenset({_S.ABORTED}),
    _S.FAILED: frozenset(),
    _S.ABORTED: frozenset(),
}
"""From each state, the states that may follow. (A scored trajectory is given up with its group.)"""


@dataclass
class Trajectory:
    """One trajectory and what happened to it so far."""

    index: int
    state: TrajectoryState = TrajectoryState.ROUTING
    turn: int = 0
    calls: int = 0
    tokens: int = 0
    segments: int = 0
    versions: list[int] = field(default_factory=list)
    instance: str = ""
    reward: float | None = None
    error: str = ""

    @property
    def name(self) -> str:
        return trajectory_name(self.index)

    @property
    def alive(self) -> bool:
        """May still become scored."""
        return self.state in {_S.ROUTING, _S.GENERATING, _S.INTERRUPTED, _S.FINISHED}

    def to(self, state: TrajectoryState) -> None:
        """Raises `InvariantViolated` for a transition that is not in the table."""
        if state not in LEGAL[self.state]:
            allowed = ", ".join(sorted(LEGAL[self.state])) or "none"
            raise InvariantViolated(f"trajectory {self.name}: {self.state} -> {state}; allowed: {allowed}")
        self.state = state

    def fail(self, error: str) -> None:
        self.to(TrajectoryState.FAILED)
        self.error = error

    def absorb(self, result: GenerateResult) -> None:
        """Take over what a generate call reports."""
        self.tokens = result.tokens
        self.segments += 1 if result.new_tokens else 0
        self.versions.extend(version for version in result.versions if version not in self.versions)
        self.instance = result.instance

    def line(self) -> str:
        """One line of the trace that the web UI shows."""
        versions = "→".join(f"v{version}" for version in self.versions) or "-"
        reward = "" if self.reward is None else f", reward {self.reward:.3g}"
        error = f", {self.error}" if self.error else ""
        return (
            f"{self.name} turn {self.turn + 1}: {self.tokens} tokens, {versions}, {self.instance or '-'}, "
            f"{self.state}{reward}{error}"
        )
