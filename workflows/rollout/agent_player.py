"""Plays the episodes of a group by agents from outside, each in a session of its own. Used by `Trajectories` in place
of `TurnPlayer`.

Promises: an episode that failed is begun anew as often as the run allows, in a new session; every wait ends with the
lifetime, and with it the agents and their sessions (L11).
"""

import asyncio
from collections.abc import Callable, Sequence

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId, RunId
    from ...schemas.messages.agents import AgentRun, RunAgent
    from ...schemas.messages.rollout import SegmentEnd
    from ...schemas.messages.run import RolloutSettings
    from ..calls import table as calls
    from ..calls.lifetime import Lifetime, ran_out
    from ..calls.tasks import end, look_at_done
    from .trajectory import Trajectory, TrajectoryState

Changed = Callable[[], None]


class AgentPlayer:
    """`label` keeps activity ids of several groups in one workflow apart."""

    def __init__(
        self,
        run_id: RunId,
        group_id: GroupId,
        rollout: RolloutSettings,
        *,
        trajectories: Sequence[Trajectory],
        lifetime: Lifetime,
        changed: Changed,
        label: str = "",
    ) -> None:
        self._run_id, self._group_id, self._rollout = run_id, group_id, rollout
        self._trajectories, self._lifetime = trajectories, lifetime
        self._changed, self._label = changed, label

    async def play(self) -> None:
        """Until it is cancelled: the caller decides when enough are scored."""
        playing = {asyncio.create_task(self._play(trajectory)) for trajectory in self._trajectories}
        try:
            while True:
                await workflow.wait_condition(lambda: any(task.done() for task in playing))
                look_at_done(playing)
        except (Exception, asyncio.CancelledError):
            await end(*playing)
            raise

    async def _play(self, trajectory: Trajectory) -> None:
        trajectory.to(TrajectoryState.GENERATING)
        self._changed()
        for attempt in range(1, self._rollout.attempts + 1):
            try:
                run = await self._run(trajectory, attempt)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                late = "not finished before the group's deadline" if ran_out(error) else str(error.cause)
                trajectory.fail(late)
                break
            _absorb(trajectory, run)
            if run.ended.success:
                trajectory.to(TrajectoryState.FINISHED)
                break
            if attempt == self._rollout.attempts or not run.ended.worth_another:
                trajectory.fail(f"{run.ended}: {run.error}" if run.error else run.ended.value)
                break
            workflow.logger.warning("group %s %s anew: %s", self._group_id, trajectory.name, run.error or run.ended)
        self._changed()

    async def _run(self, trajectory: Trajectory, attempt: int) -> AgentRun:
        request = RunAgent(
            run_id=self._run_id,
            group_id=self._group_id,
            episode=trajectory.index,
            episodes=self._rollout.offered,
        )
        again = "" if attempt == 1 else f"-{attempt}"
        return await calls.run_agent.within(
            self._lifetime,
            request,
            activity_id=f"{self._label}agent-{trajectory.name}{again}",
            summary=f"agent {trajectory.name}" + (f", attempt {attempt}" if again else ""),
        )


def _absorb(trajectory: Trajectory, run: AgentRun) -> None:
    """What it is shown with. Its turn is over when the agent has ended."""
    trajectory.turn, trajectory.tokens, trajectory.segments = max(0, run.turns - 1), run.tokens, run.segments
    trajectory.versions, trajectory.end = list(run.versions), SegmentEnd.STOP
