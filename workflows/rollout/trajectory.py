"""The life of one trajectory: a state machine and what happened to it so far. Pure; used by `Turns`, `Actor` and
`Scorer`."""

from collections.abc import Sequence
from enum import StrEnum

from ...schemas.ids import InstanceId, trajectory_name
from ...schemas.messages.rollout import SegmentEnd, TurnResult
from ..machine import Machine, Table


class TrajectoryState(StrEnum):
    ROUTING = "routing"
    """Waits for an instance that may serve it and has room."""
    GENERATING = "generating"
    """A segment is being produced."""
    INTERRUPTED = "interrupted"
    """A segment ended before the turn did; its tokens are stored."""
    ACTING = "acting"
    """A turn is complete; the environment answers it."""
    FINISHED = "finished"
    """All turns are complete; not yet scored."""
    SCORED = "scored"
    """Has a reward. Final."""
    FAILED = "failed"
    """Cannot be finished or scored. Final; never a reward of 0.0."""
    ABORTED = "aborted"
    """No longer needed: enough siblings are scored, or the group was given up. Final."""


_S = TrajectoryState
LEGAL: Table[TrajectoryState] = {
    _S.ROUTING: frozenset({_S.GENERATING, _S.FAILED, _S.ABORTED}),
    _S.GENERATING: frozenset({_S.INTERRUPTED, _S.ACTING, _S.FINISHED, _S.FAILED, _S.ABORTED}),
    _S.INTERRUPTED: frozenset({_S.ROUTING, _S.FAILED, _S.ABORTED}),
    _S.ACTING: frozenset({_S.ROUTING, _S.FINISHED, _S.FAILED, _S.ABORTED}),
    _S.FINISHED: frozenset({_S.SCORED, _S.FAILED, _S.ABORTED}),
    _S.SCORED: frozenset(),
    _S.FAILED: frozenset(),
    _S.ABORTED: frozenset(),
}


class Trajectory:
    def __init__(self, index: int, turn: int = 0, calls: int = 0) -> None:
        self.index = index
        self.name = trajectory_name(index)
        self.turn, self.calls = turn, calls
        self.tokens = self.segments = 0
        self.versions: list[int] = []
        self.end: SegmentEnd | None = None
        """Of the turn, when it is complete."""
        self.instance = self.error = ""
        self.max_tokens: int | None = None
        """What the turn may sample; null: as for every first turn."""
        self.prefer: InstanceId | None = None
        """It played the turn before, and has the KV cache."""
        self.environment = ""
        """Task queue of the process that keeps its environment; empty while none does."""
        self.defects = 0
        """How often the turn failed of one in a row, without a token in between."""
        self._earlier_tokens = 0
        self.reward: float | None = None
        self._machine = Machine(f"trajectory {self.name}", LEGAL, TrajectoryState.ROUTING)

    @property
    def state(self) -> TrajectoryState:
        return self._machine.state

    @property
    def alive(self) -> bool:
        """May still become scored."""
        return not self._machine.final

    def to(self, state: TrajectoryState) -> None:
        """Raises `InvariantViolated` for a transition that is not in the table."""
        self._machine.to(state)

    def fail(self, error: str) -> None:
        self.to(TrajectoryState.FAILED)
        self.error = error

    def score(self, reward: float) -> None:
        self.to(TrajectoryState.SCORED)
        self.reward = reward

    def next_turn(self, max_tokens: int) -> None:
        """The environment has answered."""
        self.to(TrajectoryState.ROUTING)
        self.turn += 1
        self.max_tokens, self.prefer, self.end = max_tokens, InstanceId(self.instance), None
        self._earlier_tokens = self.tokens

    def absorb(self, result: TurnResult) -> None:
        """Take over what a generate call reports."""
        self.tokens = max(self.tokens, self._earlier_tokens + result.tokens)
        self.end = result.end if result.complete else None
        self.segments += 1 if result.new_tokens else 0
        if result.failure is None or result.new_tokens:
            self.defects = 0
        self.versions.extend(version for version in result.versions if version not in self.versions)

    def line(self) -> str:
        """One line of the trace that the web UI shows."""
        versions = "→".join(f"v{version}" for version in self.versions) or "-"
        reward = "" if self.reward is None else f", reward {self.reward:.3g}"
        error = f", {self.error}" if self.error else ""
        return (
            f"{self.name} turn {self.turn + 1}: {self.tokens} tokens, {versions}, {self.instance or '-'}, "
            f"{self.state}{reward}{error}"
        )


def missing(trajectories: Sequence[Trajectory], needed: int) -> int:
    """How many must still be finished for the group to be complete."""
    finished = (TrajectoryState.FINISHED, TrajectoryState.SCORED)
    return needed - sum(trajectory.state in finished for trajectory in trajectories)
