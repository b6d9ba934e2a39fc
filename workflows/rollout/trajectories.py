"""The trajectories of one group, played and scored until enough are scored or no more can be. Used by `RolloutGroup`
and `Evaluation`.

Promise: whatever still runs at the end is cancelled, down to the engine (L11), and environments are closed.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from ...schemas.config.agentic import AgentLoop
    from ...schemas.ids import GroupId, RunId
    from ...schemas.messages.rewards import GroupVerdict
    from ...schemas.messages.rollout import Placement
    from ...schemas.messages.run import RolloutSettings
    from ..calls.lifetime import Lifetime
    from ..calls.tasks import ended_after
    from .actor import Actor
    from .agent_player import AgentPlayer
    from .scorer import Scorer
    from .trajectory import Trajectory, TrajectoryState
    from .turn_player import Changed, TurnPlayer


class Trajectories:
    def __init__(
        self,
        run_id: RunId,
        group_id: GroupId,
        rollout: RolloutSettings,
        *,
        version_tag: int,
        placements: Sequence[Placement] = (),
        changed: Changed = lambda: None,
        label: str = "",
    ) -> None:
        self._all = [Trajectory(index) for index in range(rollout.offered)]
        self._needed = rollout.needed
        self._lifetime = Lifetime(timedelta(seconds=rollout.timeout_s))
        self._player: AgentPlayer | TurnPlayer
        if rollout.agent_loop is AgentLoop.SESSION:
            self._player = AgentPlayer(
                run_id,
                group_id,
                rollout,
                trajectories=self._all,
                lifetime=self._lifetime,
                changed=changed,
                label=label,
            )
        else:
            self._player = TurnPlayer(
                run_id,
                group_id,
                rollout,
                version_tag=version_tag,
                trajectories=self._all,
                placements=placements,
                lifetime=self._lifetime,
                changed=changed,
                label=label,
            )
        self._scorer = Scorer(run_id, group_id, rollout, trajectories=self._all, lifetime=self._lifetime, label=label)
        self._actor = (
            Actor(
                run_id,
                group_id,
                rollout.turns,
                trajectories=self._all,
                needed=rollout.needed,
                lifetime=self._lifetime,
                label=label,
            )
            if rollout.turns is not None
            else None
        )

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._all)

    @property
    def scored(self) -> list[Trajectory]:
        return [t for t in self._all if t.state is TrajectoryState.SCORED]

    @property
    def rewards(self) -> list[float]:
        return [t.reward for t in self.scored if t.reward is not None]

    @property
    def verdict(self) -> GroupVerdict | None:
        """Of the run's group filter on a complete group; None for a run without one."""
        return self._scorer.verdict

    @property
    def complete(self) -> bool:
        return len(self.scored) >= self._needed

    @property
    def hopeless(self) -> bool:
        """Too few trajectories are left to reach what is needed."""
        return len(self.scored) + sum(t.alive for t in self._all) < self._needed

    async def play(self) -> None:
        """Return when the group is complete or hopeless."""
        if self._actor is None:
            await self._play(self._player.play(), self._scorer.score())
            return
        try:
            await self._play(self._player.play(), self._scorer.score(), self._actor.act())
        except (Exception, asyncio.CancelledError):
            await self._actor.close()
            raise
        await self._actor.close()

    async def _play(self, *parts: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            async with ended_after(*tasks):
                await workflow.wait_condition(
                    lambda: self.complete or self.hopeless or any(task.done() for task in tasks)
                )
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            self._lifetime.close()
            for trajectory in self._all:
                if trajectory.alive:
                    trajectory.to(TrajectoryState.ABORTED)
