"""Trajectories of one group as concurrent state machines that share one router and one scorer.

Used by `RolloutGroup` and `Evaluation`. Promises: a trajectory's tokens come only from versions at or above the tag
(L1); an interrupted or crashed generation goes on from its stored prefix (L6), also after an absence of the stack of
whatever length; every wait ends with the group's lifetime (L11); a reward that failed is a failed trajectory (L10).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from ...activities import signatures
    from ...schemas.config import RoutingMethod
    from ...schemas.ids import GroupId, RunId, rollout_queue
    from ...schemas.messages.rewards import GroupVerdict, Score, ScoreOutcome, ScoreRequest
    from ...schemas.messages.rollout import (
        GenerateRequest,
        GenerateResult,
        Placement,
        RouteRequest,
        Sampling,
        SegmentEnd,
        TrajectoryRef,
    )
    from ...schemas.seeds import group_seed, trajectory_seed
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.lifetime import Lifetime
    from ..calls.tasks import ended_after
    from .trajectory import Trajectory, TrajectoryState

FATAL_TYPES = frozenset({"StaleAttempt", "InvariantViolated", "ModelError", "DataError", "ConfigError"})
"""Failures of a generate call that routing anew cannot repair."""


class Episodes:
    """Plays the trajectories of one group until enough are scored or no more can be. `label` keeps activity ids of
    several groups in one workflow apart."""

    def __init__(
        self,
        run_id: RunId,
        group_id: GroupId,
        *,
        version_tag: int,
        offered: int,
        needed: int,
        sampling: Sampling,
        seed: int,
        limit: timedelta,
        reward_timeout: timedelta,
        coalesce: bool,
        routing: RoutingMethod,
        one_version: bool = False,
        label: str = "",
    ) -> None:
        self.trajectories = [Trajectory(index) for index in range(offered)]
        self._run_id, self._group_id = run_id, group_id
        self._tag, self._needed = version_tag, needed
        self._sampling, self._seed = sampling, group_seed(seed, group_id)
        self._lifetime, self._reward_timeout, self._coalesce = Lifetime(limit), reward_timeout, coalesce
        self._label, self._routing, self._one_version = label, routing, one_version
        self._unplaced: list[int] = []
        self._places: dict[int, Placement] = {}
        self._unscored: list[int] = []
        self._expired = False
        self.verdict: GroupVerdict | None = None
        """Of the run's group filter, once the group is complete; None for a run without one."""

    @property
    def scored(self) -> list[Trajectory]:
        return [t for t in self.trajectories if t.state is TrajectoryState.SCORED]

    @property
    def complete(self) -> bool:
        return len(self.scored) >= self._needed

    @property
    def hopeless(self) -> bool:
        """Too few trajectories are left to reach what is needed."""
        return len(self.scored) + sum(t.alive for t in self.trajectories) < self._needed

    async def play(self) -> None:
        """Return when the group is complete or hopeless; whatever still runs is cancelled, down to the engine."""
        tasks = [asyncio.create_task(self._router()), asyncio.create_task(self._scorer())]
        tasks += [asyncio.create_task(self._live(trajectory)) for trajectory in self.trajectories]
        try:
            async with ended_after(*tasks):
                await workflow.wait_condition(
                    lambda: self.complete or self.hopeless or any(t.done() and t.exception() for t in tasks)
                )
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            self._lifetime.close()
            for trajectory in self.trajectories:
                if trajectory.alive:
                    trajectory.to(TrajectoryState.ABORTED)

    # --- one trajectory ----------------------------------------------------------------------------------------------

    async def _live(self, trajectory: Trajectory) -> None:
        while True:
            place = await self._place(trajectory)
            if place is None:
                trajectory.fail(f"no instance at v{self._tag} or newer had room before the deadline")
                return
            trajectory.to(TrajectoryState.GENERATING)
            result = await self._generate(trajectory, place)
            if trajectory.state is TrajectoryState.FAILED:
                return
            if result is not None and result.end is not SegmentEnd.INTERRUPTED:
                trajectory.to(TrajectoryState.FINISHED)
                self._unscored.append(trajectory.index)
                return
            trajectory.to(TrajectoryState.INTERRUPTED)
            if result is None:
                await workflow.sleep(settings.ROUTE_RETRY_S)
            trajectory.to(TrajectoryState.ROUTING)

    async def _generate(self, trajectory: Trajectory, place: Placement) -> GenerateResult | None:
        """One segment call. `None`: the host failed and the trajectory should be routed anew."""
        call = trajectory.calls
        trajectory.calls += 1
        trajectory.instance = place.instance
        request = GenerateRequest(
            trajectory=TrajectoryRef(run_id=self._run_id, group_id=self._group_id, index=trajectory.index),
            turn=trajectory.turn,
            call=call,
            version_tag=self._tag,
            sampling=self._sampling.model_copy(update={"seed": trajectory_seed(self._seed, trajectory.index)}),
            one_version=self._one_version,
        )
        try:
            result = await workflow.execute_activity(
                signatures.generate,
                request,
                task_queue=rollout_queue(place.instance),
                activity_id=f"{self._label}{trajectory.name}-s{call}",
                summary=f"{trajectory.name} turn {trajectory.turn + 1} · v{place.version} · {place.instance}",
                schedule_to_close_timeout=self._lifetime.timeout,
                schedule_to_start_timeout=settings.POLL_START,
                heartbeat_timeout=settings.HEARTBEAT,
                retry_policy=settings.ONCE,
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._judge(trajectory, error)
            if trajectory.alive:
                name = f"group {self._group_id} {trajectory.name}"
                workflow.logger.warning("%s is routed anew, %s failed: %s", name, place.instance, error.cause)
            return None
        trajectory.absorb(result)
        return result

    def _judge(self, trajectory: Trajectory, error: ActivityError) -> None:
        """A dead or busy host means routing anew, and so does a timeout by the server's clock while the group has time
        left; a fatal answer or the deadline fails the trajectory."""
        cause = error.cause
        fatal = isinstance(cause, ApplicationError) and (cause.type in FATAL_TYPES or cause.non_retryable)
        if fatal:
            trajectory.fail(f"{cause.type}: {cause.message[:200]}" if isinstance(cause, ApplicationError) else "")
        elif self._lifetime.over:
            waited = cause.type.name.lower() if isinstance(cause, ActivityTimeout) and cause.type else "deadline"
            trajectory.fail(f"not finished before the group's deadline ({waited})")

    # --- routing -----------------------------------------------------------------------------------------------------

    async def _place(self, trajectory: Trajectory) -> Placement | None:
        self._unplaced.append(trajectory.index)
        await workflow.wait_condition(lambda: trajectory.index in self._places or self._expired)
        return self._places.pop(trajectory.index, None)

    async def _router(self) -> None:
        """One coordinator call places every trajectory that waits meanwhile."""
        while True:
            await workflow.wait_condition(lambda: bool(self._unplaced))
            indices, self._unplaced = tuple(self._unplaced), []
            placed = await self._route(indices)
            self._places.update({placement.index: placement for placement in placed})
            left = [index for index in indices if index not in self._places]
            if left:
                await workflow.sleep(settings.ROUTE_RETRY_S)
                if self._lifetime.over:
                    self._expired = True
                    return
                self._unplaced.extend(left)

    async def _route(self, indices: tuple[int, ...]) -> Sequence[Placement]:
        request = RouteRequest(
            run_id=self._run_id, group_id=self._group_id, indices=indices, version_tag=self._tag, method=self._routing
        )
        try:
            result = await workflow.execute_local_activity(
                signatures.route,
                request,
                schedule_to_close_timeout=settings.SHORT,
                retry_policy=settings.LOCAL,
            )
        except FailureError as error:  # of a local activity, also what it raised itself
            if is_cancelled_exception(error) or (isinstance(error, ApplicationError) and error.non_retryable):
                raise
            return ()
        return result.placements

    # --- scoring -----------------------------------------------------------------------------------------------------

    async def _scorer(self) -> None:
        """With `coalesce`, one task scores what completes the group; without, each trajectory has its own."""
        running: set[asyncio.Task[None]] = set()
        while True:
            await workflow.wait_condition(lambda: self._scorable() or any(task.done() for task in running))
            for task in [task for task in running if task.done()]:
                running.discard(task)
                task.result()
            if not self._scorable():
                continue
            indices, self._unscored = self._unscored, []
            for batch in [indices] if self._coalesce else [[index] for index in indices]:
                running.add(asyncio.create_task(self._score(tuple(batch))))

    def _scorable(self) -> bool:
        if not self._coalesce:
            return bool(self._unscored)
        others = sum(t.alive and t.state is not TrajectoryState.FINISHED for t in self.trajectories)
        return bool(self._unscored) and (len(self._unscored) + len(self.scored) >= self._needed or others == 0)

    async def _score(self, indices: tuple[int, ...]) -> None:
        names = ", ".join(self.trajectories[index].name for index in indices)
        try:
            result = await replace(calls.score, start_to_close=self._reward_timeout).within(
                self._lifetime,
                ScoreRequest(run_id=self._run_id, group_id=self._group_id, indices=indices),
                activity_id=f"{self._label}score-{indices[0]:02d}-{len(indices)}",
                summary=f"score {names}" if len(indices) <= 4 else f"score {len(indices)} trajectories",
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            scores: Sequence[Score] = [
                Score(index=index, outcome=ScoreOutcome.FAILED, error=f"scoring: {error.cause}") for index in indices
            ]
        else:
            scores = result.scores
            self.verdict = result.verdict or self.verdict
        for score in scores:
            self._settle(score)

    def _settle(self, score: Score) -> None:
        trajectory = self.trajectories[score.index]
        if trajectory.state is not TrajectoryState.FINISHED:
            return
        if score.outcome is ScoreOutcome.SCORED:
            trajectory.reward = score.reward
            trajectory.to(TrajectoryState.SCORED)
        else:
            trajectory.fail(f"reward failed: {score.error}")
