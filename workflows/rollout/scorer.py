"""Scores the finished trajectories of a group. Used by `Trajectories`.

Promises: a reward that failed is a failed trajectory, never 0.0 (L10); a slow reward holds no sibling unless the group
is scored as one; every wait ends with the lifetime (L11).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId, RunId, trajectory_names
    from ...schemas.messages.rewards import GroupVerdict, Score, ScoreOutcome, ScoreRequest
    from ...schemas.messages.run import RolloutSettings
    from ..calls import table as calls
    from ..calls.lifetime import Lifetime
    from ..calls.tasks import end, look_at_done
    from .trajectory import Trajectory, TrajectoryState

_S = TrajectoryState


class Scorer:
    """With `coalesce_rewards`, one task scores what completes the group; without, each trajectory has its own."""

    def __init__(
        self,
        run_id: RunId,
        group_id: GroupId,
        rollout: RolloutSettings,
        *,
        trajectories: Sequence[Trajectory],
        lifetime: Lifetime,
        label: str = "",
    ) -> None:
        self._run_id, self._group_id, self._rollout = run_id, group_id, rollout
        self._call = replace(calls.score, start_to_close=timedelta(seconds=rollout.reward_timeout_s))
        self._trajectories, self._lifetime, self._label = trajectories, lifetime, label
        self.verdict: GroupVerdict | None = None
        """Of the run's group filter, once the group is complete; None for a run without one."""
        self._asked: set[int] = set()
        self._scoring: set[asyncio.Task[None]] = set()

    async def score(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await workflow.wait_condition(lambda: self._due or any(task.done() for task in self._scoring))
                look_at_done(self._scoring)
                if self._due:
                    self._start()
        except (Exception, asyncio.CancelledError):
            await end(*self._scoring)
            raise

    def _start(self) -> None:
        indices = self._unasked
        self._asked.update(indices)
        for together in [indices] if self._rollout.coalesce_rewards else [(index,) for index in indices]:
            self._scoring.add(asyncio.create_task(self._score(together)))

    @property
    def _unasked(self) -> tuple[int, ...]:
        return tuple(t.index for t in self._trajectories if t.state is _S.FINISHED and t.index not in self._asked)

    @property
    def _due(self) -> bool:
        unasked = self._unasked
        if not unasked or not self._rollout.coalesce_rewards:
            return bool(unasked)
        scored = sum(t.state is _S.SCORED for t in self._trajectories)
        others = any(t.alive and t.state is not _S.FINISHED for t in self._trajectories)
        return len(unasked) + scored >= self._rollout.needed or not others

    async def _score(self, indices: tuple[int, ...]) -> None:
        names = trajectory_names(indices)
        try:
            result = await self._call.within(
                self._lifetime,
                ScoreRequest(
                    run_id=self._run_id, group_id=self._group_id, indices=indices, episodes=self._rollout.offered
                ),
                activity_id=f"{self._label}score-{names}",
                summary=f"score {names}",
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
            self._settle(self._trajectories[score.index], score)

    def _settle(self, trajectory: Trajectory, score: Score) -> None:
        if trajectory.state is not _S.FINISHED:
            return
        if score.outcome is ScoreOutcome.SCORED and score.reward is not None:
            trajectory.score(score.reward)
        else:
            trajectory.fail(f"reward failed: {score.error}")
