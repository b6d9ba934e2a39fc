"""Plays one turn of one or many trajectories of a group: route, generate, re-route. Used by `Trajectories`.

Promises: a trajectory's tokens come only from versions at or above the tag (L1); an interrupted or crashed generation
continues from its stored prefix (L6), also after an absence of the stack of whatever length; turns that one instance
plays share one call; every wait ends with the lifetime (L11).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from ...schemas.ids import GroupId, InstanceId, RunId, rollout_queue, trajectory_names
    from ...schemas.messages.rollout import (
        CalledTurn,
        GenerateRequest,
        GenerateResult,
        Placement,
        RouteRequest,
        RouteResult,
    )
    from ...schemas.messages.run import RolloutSettings
    from ...schemas.seeds import group_seed, turn_seed
    from ..calls import settings
    from ..calls import table as calls
    from ..calls.lifetime import Lifetime
    from ..calls.tasks import end, look_at_done
    from .trajectory import Trajectory
    from .turns import Share, Turns

Changed = Callable[[], None]
"""Told when the state of a trajectory has changed."""


Route = Callable[[RouteRequest], Awaitable[RouteResult]]
"""Asks the coordinator."""


class TurnPlayer:
    """`placements` are those that are known at the beginning. `label` keeps activity ids of several groups or turns in
    one workflow apart. `conversation`: as in `TurnRequest`."""

    def __init__(
        self,
        run_id: RunId,
        group_id: GroupId,
        rollout: RolloutSettings,
        *,
        version_tag: int,
        trajectories: Sequence[Trajectory],
        placements: Sequence[Placement],
        lifetime: Lifetime,
        changed: Changed,
        label: str = "",
        route: Route = calls.route,
        conversation: bool = False,
    ) -> None:
        self._run_id, self._group_id, self._rollout, self._tag = run_id, group_id, rollout, version_tag
        self._trajectories = {trajectory.index: trajectory for trajectory in trajectories}
        self._answered = rollout.turns is not None and not conversation
        """By an environment; the turns of a session are answered by its agent, whatever the run's groups do."""
        self._turns = Turns(trajectories, rollout.needed, answered=self._answered)
        self._call_route, self._conversation = route, conversation
        self._placements, self._lifetime, self._changed, self._label = placements, lifetime, changed, label
        self._seed = group_seed(rollout.seed, group_id)
        self._playing: set[asyncio.Task[None]] = set()
        self._calls = 0
        self._waited_for = ""
        """As the coordinator said last."""

    async def play(self) -> None:
        """Until it is cancelled: whether enough have finished, and whether one must continue after all because another
        could not be scored, the caller decides. What still runs then is cancelled, down to the engine."""
        try:
            self._begin(self._placements)
            while True:
                await workflow.wait_condition(lambda: bool(self._turns.routable) or self._anyone_done)
                look_at_done(self._playing)
                await self._route()
        except (Exception, asyncio.CancelledError):
            await end(*self._playing)
            raise

    @property
    def _anyone_done(self) -> bool:
        return any(task.done() for task in self._playing)

    # --- routing -----------------------------------------------------------------------------------------------------

    async def _route(self) -> None:
        """One question for all that wait, or one for each instance that they would continue on. What found no room is
        asked for again after a while."""
        indices = self._turns.route()
        if not indices:
            return
        asked: dict[InstanceId | None, tuple[int, ...]] = {}
        for index in indices:
            prefer = self._trajectories[index].prefer
            asked[prefer] = (*asked.get(prefer, ()), index)
        answers = await asyncio.gather(*(self._ask(those, prefer) for prefer, those in asked.items()))
        placements = [placement for answer in answers for placement in answer]
        self._begin(placements)
        if len(placements) < len(indices):
            await workflow.sleep(settings.ROUTE_RETRY_S)
            if self._lifetime.over:
                self._turns.without_room(
                    f"no instance at v{self._tag} or newer took it before the deadline ({self._waited_for})"
                )

    def _begin(self, placements: Sequence[Placement]) -> None:
        for share in self._turns.placed(placements):
            self._start(share)
        self._changed()

    async def _ask(self, indices: tuple[int, ...], prefer: InstanceId | None) -> Sequence[Placement]:
        request = RouteRequest(
            run_id=self._run_id,
            group_id=self._group_id,
            indices=indices,
            version_tag=self._tag,
            strategy=self._rollout.strategy,
            prefer=prefer,
        )
        try:
            answer = await self._call_route(request)
        except FailureError as error:
            # A local activity's own error arrives bare.
            cause = error.cause if isinstance(error, ActivityError) else error
            if is_cancelled_exception(error) or (isinstance(cause, ApplicationError) and cause.non_retryable):
                raise
            said = cause.message if isinstance(cause, ApplicationError) else "no answer in time"
            self._waited_for = f"asking for an instance failed: {said[:200]}"
            return ()
        self._waited_for = answer.reason or self._waited_for
        return answer.placements

    # --- generating --------------------------------------------------------------------------------------------------

    def _start(self, share: Share) -> None:
        self._playing.add(asyncio.create_task(self._play(share)))

    async def _play(self, share: Share) -> None:
        """One call. What the engine still has when it returns is asked for again at once, so that the host keeps it."""
        try:
            result = await self._generate(share)
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            self._call_failed(share, error)
        else:
            if (rest := self._turns.answered(share, result.turns)) is not None:
                self._start(rest)
            self._warn(share, result)
        self._changed()
        if pausing := self._turns.pausing(share):
            await workflow.sleep(settings.ROUTE_RETRY_S)
            self._turns.paused(pausing)

    async def _generate(self, share: Share) -> GenerateResult:
        request = self._request(share)
        number, self._calls = self._calls, self._calls + 1
        names = trajectory_names(share.indices)
        turns = sorted({called.turn + 1 for called in request.turns})
        return await replace(calls.generate, patience=self._lifetime.timeout).on(rollout_queue(share.instance))(
            request,
            activity_id=f"{self._label}{names}-s{number}",
            summary=f"{names} turn {turns[0]} · v{share.version} · {share.instance}",
        )

    def _request(self, share: Share) -> GenerateRequest:
        called = []
        for trajectory in (self._trajectories[index] for index in share.indices):
            called.append(
                CalledTurn(
                    index=trajectory.index,
                    turn=trajectory.turn,
                    call=trajectory.calls,
                    seed=turn_seed(self._seed, trajectory.index, trajectory.turn),
                    max_tokens=trajectory.max_tokens,
                )
            )
            trajectory.calls += 1
        unfinished, missing = self._turns.unfinished, max(1, self._turns.missing)
        # A turn that the environment answers finishes nothing: none is cut short for it, and each end counts.
        alone = len(unfinished) == len(called) and not self._answered
        return GenerateRequest(
            run_id=self._run_id,
            group_id=self._group_id,
            turns=tuple(called),
            version_tag=self._tag,
            sampling=self._rollout.sampling,
            enough=missing if alone else len(called),
            # What other calls finish may make this one superfluous: then each end counts.
            one_by_one=self._answered
            or not self._rollout.coalesce_rewards
            or (not alone and missing < len(unfinished)),
            one_version=self._rollout.one_version,
            conversation=self._conversation,
        )

    def _call_failed(self, share: Share, error: ActivityError) -> None:
        """A dead or busy host means routing anew, and so does a timeout by the server's clock while the group has time
        left; a fatal answer or the deadline fails the trajectories."""
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.non_retryable:
            self._turns.refused(share, f"{cause.type}: {cause.message[:200]}")
        elif self._lifetime.over:
            waited = cause.type.name.lower() if isinstance(cause, ActivityTimeout) and cause.type else "deadline"
            self._turns.refused(share, f"not finished before the group's deadline ({waited})")
        else:
            self._turns.host_lost(share)
            self._routed_anew(share.indices, share, str(cause))

    def _warn(self, share: Share, result: GenerateResult) -> None:
        for turn in result.turns:
            if turn.failure is not None and turn.failure.retryable:
                self._routed_anew((turn.index,), share, f"{turn.failure.type}: {turn.failure.message}")

    def _routed_anew(self, indices: Sequence[int], share: Share, why: str) -> None:
        name = f"group {self._group_id} {trajectory_names(indices)}"
        workflow.logger.warning("rerouting %s, %s failed: %s", name, share.instance, why)
