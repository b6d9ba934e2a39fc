"""Lets the environment answer complete turns of a group, one step per turn. Used by `Trajectories` beside `TurnPlayer`
and `Scorer`.

Promises: a slow environment holds no sibling; a step goes to the process that keeps the environment, and to any other
when that one is gone; a failed environment fails its trajectory, never its group's others; whatever a process still
keeps at the end is closed; every wait ends with the lifetime (L11).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId, RunId, trajectory_names
    from ...schemas.messages.environments import CloseEnvironments, EnvironmentStep, StepEnvironment
    from ...schemas.messages.episodes import TerminateReason
    from ...schemas.messages.run import TurnLimits
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.call import Call
    from ..calls.lifetime import Lifetime
    from ..calls.tasks import end, look_at_done
    from .trajectory import Trajectory, TrajectoryState, missing

_S = TrajectoryState
UNDER_WAY = (_S.ROUTING, _S.GENERATING, _S.INTERRUPTED, _S.ACTING)


class Actor:
    def __init__(
        self,
        run_id: RunId,
        group_id: GroupId,
        limits: TurnLimits,
        *,
        trajectories: Sequence[Trajectory],
        needed: int,
        lifetime: Lifetime,
        label: str = "",
    ) -> None:
        self._run_id, self._group_id, self._limits = run_id, group_id, limits
        self._call = replace(calls.step_environment, start_to_close=timedelta(seconds=limits.attempt_s))
        self._trajectories, self._needed = trajectories, needed
        self._lifetime, self._label = lifetime, label
        self._asked: set[tuple[int, int]] = set()
        self._acting: set[asyncio.Task[None]] = set()

    async def act(self) -> None:
        """Until it is cancelled."""
        limit = self._limits.trajectory_s
        if limit is not None:
            self._acting.add(asyncio.create_task(self._watch(Lifetime(timedelta(seconds=limit)))))
        try:
            while True:
                await workflow.wait_condition(lambda: bool(self._due) or any(task.done() for task in self._acting))
                look_at_done(self._acting)
                for trajectory in self._due:
                    self._asked.add((trajectory.index, trajectory.turn))
                    self._acting.add(asyncio.create_task(self._step(trajectory)))
        except (Exception, asyncio.CancelledError):
            await end(*self._acting)
            raise

    async def close(self) -> None:
        """What processes still keep of this group. Best effort: they close by themselves what is idle for too long."""
        kept: dict[str, list[int]] = {}
        for trajectory in self._trajectories:
            if trajectory.environment:
                kept.setdefault(trajectory.environment, []).append(trajectory.index)
                trajectory.environment = ""
        await asyncio.gather(*(self._close(queue, tuple(indices)) for queue, indices in kept.items()))

    @property
    def _due(self) -> list[Trajectory]:
        """Those that nobody has asked for yet; none that nobody needs any more."""
        if missing(self._trajectories, self._needed) <= 0:
            return []
        return [t for t in self._trajectories if t.state is _S.ACTING and (t.index, t.turn) not in self._asked]

    async def _step(self, trajectory: Trajectory) -> None:
        try:
            step = await self._answer(trajectory)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            if trajectory.state is _S.ACTING:
                trajectory.fail(f"environment: {error.cause}")
            return
        trajectory.environment = step.queue
        if trajectory.state is not _S.ACTING:
            return  # it took longer than the trajectory may
        if step.ended is None:
            trajectory.next_turn(step.max_tokens)
        elif step.ended.success:
            trajectory.to(_S.FINISHED)
        else:
            trajectory.fail(f"{step.ended}: {step.error}")

    async def _answer(self, trajectory: Trajectory) -> EnvironmentStep:
        """The process that keeps the environment is asked once; then any may make it anew."""
        if trajectory.environment:
            once = replace(self._call, pickup=settings.POLL_START, retry=settings.ONCE, living=False)
            try:
                return await self._ask(once.on(trajectory.environment), trajectory, "kept")
            except ActivityError as error:
                fatal = isinstance(error.cause, ApplicationError) and error.cause.non_retryable
                if is_cancelled_exception(error) or fatal or self._lifetime.over:
                    raise
                workflow.logger.warning("%s of group %s: %s", trajectory.name, self._group_id, error.cause)
                trajectory.environment = ""
        return await self._ask(self._call, trajectory, "any")

    async def _ask(
        self, call: Call[StepEnvironment, EnvironmentStep], trajectory: Trajectory, where: str
    ) -> EnvironmentStep:
        request = StepEnvironment(
            run_id=self._run_id, group_id=self._group_id, index=trajectory.index, turn=trajectory.turn
        )
        return await call.within(
            self._lifetime,
            request,
            activity_id=f"{self._label}step-{trajectory.name}-{trajectory.turn}-{where}",
            summary=f"{trajectory.name} turn {trajectory.turn + 1} · environment",
        )

    async def _close(self, queue: str, indices: tuple[int, ...]) -> None:
        request = CloseEnvironments(run_id=self._run_id, group_id=self._group_id, indices=indices)
        names = trajectory_names(indices)
        try:
            await calls.close_environments.on(queue)(request, summary=f"close the environments of {names}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("environments of group %s %s: %s", self._group_id, names, error.cause)

    async def _watch(self, limit: Lifetime) -> None:
        """No trajectory takes longer than it may."""
        try:
            await limit.wait(lambda: not any(t.state in UNDER_WAY for t in self._trajectories))
        except TimeoutError:
            for trajectory in self._trajectories:
                if trajectory.state in UNDER_WAY:
                    allowed = f"not finished within psrl.agentic_rl.trajectory_timeout_s={self._limits.trajectory_s:g}"
                    trajectory.fail(f"{TerminateReason.TRAJECTORY_TIMEOUT}: {allowed}")
