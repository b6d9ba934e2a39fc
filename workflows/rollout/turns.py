"""The turns of one group while they are played: which need an instance, who plays what, what an answer means. Pure;
`TurnPlayer` acts on it.

Promises: a turn is in one share at a time; one that has not begun, was interrupted, or whose host died, is routed as
long as finished ones are missing, and otherwise rests with its stored tokens; an error of one turn is none of its
siblings'; one that comes again and again, wherever the turn is played, fails the turn; what an instance says of a
trajectory that was given up meanwhile changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...schemas.ids import InstanceId
from ...schemas.messages.rollout import Placement, TurnFailure, TurnResult
from .trajectory import Trajectory, TrajectoryState, missing

_S = TrajectoryState
MAX_DEFECTS = 30
"""Half a minute. Engines that are alive and fail a turn so often will fail it for ever, and an answer is better than an
hour's wait."""


@dataclass(frozen=True)
class Share:
    """Turns that one instance plays in one generate call."""

    instance: InstanceId
    version: int
    """What the instance served when it was chosen."""
    indices: tuple[int, ...]


class Turns:
    def __init__(self, trajectories: Sequence[Trajectory], needed: int, answered: bool = False) -> None:
        """`answered`: an environment answers each turn that is complete."""
        self._trajectories, self._needed = trajectories, needed
        self._after_turn = _S.ACTING if answered else _S.FINISHED
        self._by_index = {trajectory.index: trajectory for trajectory in trajectories}
        self._pausing: set[int] = set()
        """Their host failed a moment ago: another might not know it yet, or fail likewise."""

    @property
    def missing(self) -> int:
        return missing(self._trajectories, self._needed)

    @property
    def routable(self) -> tuple[int, ...]:
        """Turns that need an instance now."""
        return tuple(t.index for t in self._trajectories if self._waits(t)) if self.missing > 0 else ()

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Trajectories that may still be finished."""
        open_states = (_S.ROUTING, _S.GENERATING, _S.INTERRUPTED, _S.ACTING)
        return tuple(t.index for t in self._trajectories if t.state in open_states)

    def route(self) -> tuple[int, ...]:
        """The same as `routable`, taken up."""
        indices = self.routable
        for trajectory in self._of(indices):
            if trajectory.state is _S.INTERRUPTED:
                trajectory.to(_S.ROUTING)
        return indices

    def placed(self, placements: Sequence[Placement]) -> list[Share]:
        """One share per instance; none when enough have finished since the coordinator was asked, and without what was
        given up meanwhile. A turn that it places twice, or that was not asked for, is refused by the state machine."""
        shares: dict[InstanceId, Share] = {}
        for placement in placements if self.missing > 0 else ():
            trajectory = self._by_index[placement.index]
            if trajectory.state is _S.FAILED:
                continue
            trajectory.to(_S.GENERATING)
            trajectory.instance, trajectory.prefer = placement.instance, None
            before = shares.get(placement.instance, Share(placement.instance, placement.version, ()))
            indices = (*before.indices, placement.index)
            shares[placement.instance] = Share(placement.instance, placement.version, indices)
        return list(shares.values())

    def without_room(self, reason: str) -> None:
        """Nobody took them before the deadline."""
        for trajectory in self._trajectories:
            if trajectory.state is _S.ROUTING:
                trajectory.fail(reason)

    def answered(self, share: Share, results: Sequence[TurnResult]) -> Share | None:
        """What the instance still plays, if anything."""
        running = tuple(result.index for result in results if not self._ended(result))
        return Share(share.instance, share.version, running) if running else None

    def host_lost(self, share: Share) -> None:
        """No answer will come: each continues elsewhere from what is stored, after a pause."""
        for trajectory in self._playing(share):
            trajectory.to(_S.INTERRUPTED)
            self._pausing.add(trajectory.index)

    def refused(self, share: Share, reason: str) -> None:
        """The call as a whole failed, for a reason that another instance cannot repair."""
        for trajectory in self._playing(share):
            trajectory.fail(reason)

    def pausing(self, share: Share) -> tuple[int, ...]:
        """Those that a failure of this share keeps from being routed for now."""
        return tuple(index for index in share.indices if index in self._pausing)

    def paused(self, indices: Sequence[int]) -> None:
        """Their pause is over."""
        self._pausing.difference_update(indices)

    def _ended(self, result: TurnResult) -> bool:
        """False: it still runs in the engine."""
        trajectory = self._by_index[result.index]
        if trajectory.state is _S.FAILED:
            return True
        trajectory.absorb(result)
        if result.failure is not None:
            self._failed(trajectory, result.failure)
        elif result.complete:
            trajectory.to(self._after_turn)
        elif not result.running:
            trajectory.to(_S.INTERRUPTED)
        return trajectory.state is not _S.GENERATING

    def _failed(self, trajectory: Trajectory, failure: TurnFailure) -> None:
        trajectory.defects += failure.defect
        if failure.retryable and trajectory.defects < MAX_DEFECTS:
            trajectory.to(_S.INTERRUPTED)
            self._pausing.add(trajectory.index)
        else:
            trajectory.fail(f"{failure.type}: {failure.message[:200]}")

    def _waits(self, trajectory: Trajectory) -> bool:
        return trajectory.state in (_S.ROUTING, _S.INTERRUPTED) and trajectory.index not in self._pausing

    def _playing(self, share: Share) -> list[Trajectory]:
        return [trajectory for trajectory in self._of(share.indices) if trajectory.state is not _S.FAILED]

    def _of(self, indices: Sequence[int]) -> list[Trajectory]:
        return [self._by_index[index] for index in indices]
