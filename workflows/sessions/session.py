"""One conversation with an agent from outside. Its turns are updates, asked for by the gateway.

Started for a group by its agent runner, or by the gateway; id `RUN/session/000123-t04`. Its history reads as a trace:
per turn one update and a generate activity, another after an interruption. Promises: a turn is played once, however
often it is asked for; a hung session starts none and ends none (L7); every wait has an end (L11); what runs when it
closes may end within the drain limit, and is cut then, down to the engine.
Signals: `hang`, `continue`, `close`. Queries: `record`.
"""

import asyncio
import functools
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from ...schemas.errors import PsrlError, SessionClosed
    from ...schemas.ids import InstanceId
    from ...schemas.messages.rollout import RouteRequest, RouteResult
    from ...schemas.messages.sessions import (
        AskedTurn,
        CloseSession,
        ContinueSession,
        HangSession,
        PlayedTurn,
        SessionRecord,
        StartSession,
    )
    from ...schemas.search import STATE
    from ...schemas.seeds import group_seed
    from ...schemas.status import SessionStatus
    from ..calls import table as calls
    from ..calls.lifetime import Lifetime, while_alive
    from ..calls.tasks import ended_after
    from ..failure import FAILS
    from ..rollout.trajectory import Trajectory, TrajectoryState
    from ..rollout.turn_player import TurnPlayer
    from .state import Branch, SessionState

TICKS, MIN_TICK_S = 10, 1.0
"""Of the shortest of a session's limits."""
ENDED = (TrajectoryState.FINISHED, TrajectoryState.FAILED)


@workflow.defn(failure_exception_types=FAILS)
class Session:
    @workflow.init
    def __init__(self, start: StartSession) -> None:
        self._start = start
        limit_s = start.limits.timeout_s
        self._state = SessionState.model_validate(start.carried or {"left_s": limit_s, "first_call": start.first_call})
        self._lifetime = Lifetime(timedelta(seconds=self._state.left_s))
        self._cut = False
        self._shown, self._seen = SessionStatus.RUNNING, self._state.changes

    @workflow.run
    async def run(self, start: StartSession) -> SessionRecord:
        ticking = asyncio.create_task(self._tick())
        try:
            async with ended_after(ticking):
                while not self._state.closing:
                    await self._one_change(ticking)
                    await self._show()
        except (asyncio.CancelledError, ActivityError) as error:
            if not is_cancelled_exception(error):
                raise
            self._state.close("cancelled")
            self._cut = True
        await self._drain()
        self._state.closed()
        await self._show()
        return self.record()

    # --- signals, queries, turns -------------------------------------------------------------------------------------

    @workflow.signal
    def hang(self, request: HangSession = HangSession()) -> None:  # noqa: B008 - frozen; may be left out
        """Start no further turn until `continue`. One in flight ends first."""
        self._state.hang(request.reason)

    @workflow.signal(name="continue")
    def go_on(self, request: ContinueSession = ContinueSession()) -> None:  # noqa: B008 - frozen; may be left out
        """End a hang. With an instance, the next turn begins there if it has room."""
        self._state.go_on(request.instance)

    @workflow.signal
    def close(self, request: CloseSession = CloseSession()) -> None:  # noqa: B008 - frozen; may be left out
        """Take no further turn."""
        self._state.close(request.reason)
        self._cut |= request.cut

    @workflow.query
    def record(self) -> SessionRecord:
        state = self._state
        return SessionRecord(
            run_id=self._start.run_id,
            session_id=self._start.session_id,
            group_id=self._start.group_id,
            status=state.status,
            hang_pending=state.hang_pending,
            reason=state.reason,
            branches=tuple(state.branches[index].record() for index in sorted(state.branches)),
        )

    @workflow.update
    async def turn(self, asked: AskedTurn) -> PlayedTurn:
        """Play a turn, once the session is not hung. Fails with `SessionClosed`, `TurnInFlight`, or `TurnFailed` with
        what it failed of; the session lives on."""
        try:
            # A turn whose answer was lost is asked for again, also of a session that has moved on.
            if (answer := self._state.answered(asked)) is not None:
                return answer
            await workflow.wait_condition(lambda: not self._state.hung)
            with self._state.flight(asked) as branch:
                return await self._play(asked, branch)
        except PsrlError as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error

    @turn.validator
    def _may_begin(self, asked: AskedTurn) -> None:
        """A turn that is refused here leaves no trace in the history."""
        try:
            if self._state.answered(asked) is None:
                self._state.check(asked)
        except PsrlError as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error

    # --- the life of a session ---------------------------------------------------------------------------------------

    async def _one_change(self, ticking: "asyncio.Task[None]") -> None:
        """Wait for something to happen. What ends the ticking is a defect, and raised here."""
        state = self._state
        if workflow.info().is_continue_as_new_suggested() and not state.in_flight and not state.hung:
            await self._roll_over()
        await workflow.wait_condition(lambda: state.changes != self._seen or ticking.done())
        if ticking.done():
            ticking.result()
        self._seen = state.changes

    async def _tick(self) -> None:
        """Look at the limits from time to time: one timer, however many turns there are, for which nothing is then
        started and cancelled. A limit is granted up to a tick more."""
        limits = self._start.limits
        every = timedelta(seconds=max(min(limits.timeout_s, limits.idle_s, limits.hang_s) / TICKS, MIN_TICK_S))
        quiet = timedelta()
        while True:
            before = self._state.changes
            await workflow.sleep(every)
            quiet = quiet + every if self._state.changes == before else timedelta()
            self._look(quiet.total_seconds())

    def _look(self, quiet_s: float) -> None:
        """`quiet_s`: for how long nothing has happened; of a night in which the whole stack was down, one tick."""
        state, limits = self._state, self._start.limits
        if self._lifetime.over:
            state.close(f"it has had its {limits.timeout_s:g} s")
        elif state.hung and quiet_s >= limits.hang_s:
            state.go_on(None)
        elif not state.hung and not state.in_flight and quiet_s >= limits.idle_s:
            state.close(f"no turn was asked for in {limits.idle_s:g} s")

    async def _drain(self) -> None:
        try:
            await while_alive(
                lambda: self._cut or not self._state.in_flight, timedelta(seconds=self._start.limits.drain_s)
            )
        except TimeoutError:
            self._cut = True
        self._lifetime.close()
        # An update that is cut, or that waited for a hung session, has its answer to give.
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _roll_over(self) -> None:
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._state.left_s = self._lifetime.left.total_seconds()
        carried = self._state.model_dump(mode="json")
        workflow.continue_as_new(self._start.model_copy(update={"carried": carried}))

    async def _show(self) -> None:
        """In the web UI always; in the store and the search attributes when the status is another."""
        workflow.set_current_details("\n".join(self._state.lines()))
        if self._state.status is not self._shown:
            self._shown = self._state.status
            workflow.upsert_search_attributes([STATE.value_set(self._shown.value)])
            await calls.record_session(self.record(), summary=f"session is {self._shown}")

    # --- one turn ----------------------------------------------------------------------------------------------------

    async def _play(self, asked: AskedTurn, branch: Branch) -> PlayedTurn:
        trajectory = Trajectory(asked.index, asked.turn, branch.calls)
        player = self._player(asked, branch, trajectory)
        playing = asyncio.create_task(player.play())
        async with ended_after(playing):
            await workflow.wait_condition(lambda: trajectory.state in ENDED or playing.done() or self._cut)
            branch.calls = trajectory.calls
            if playing.done():
                playing.result()
        if trajectory.state is TrajectoryState.FAILED:
            raise ApplicationError(trajectory.error, type="TurnFailed", non_retryable=True)
        if trajectory.end is None:
            raise SessionClosed("the session closed before the turn had ended")
        played = PlayedTurn(
            index=asked.index,
            turn=asked.turn,
            end=trajectory.end,
            tokens=trajectory.tokens,
            versions=tuple(trajectory.versions),
            instance=InstanceId(trajectory.instance),
        )
        self._state.played(played)
        return played

    def _player(self, asked: AskedTurn, branch: Branch, trajectory: Trajectory) -> TurnPlayer:
        # Another attempt at the episode draws other numbers, or it would say again what the first one failed of.
        seed = group_seed(self._start.rollout.seed, self._start.session_id)
        of_turn = {"sampling": asked.sampling, "seed": seed, "needed": 1, "offered": 1}
        rollout = self._start.rollout.model_copy(update=of_turn)
        return TurnPlayer(
            self._start.run_id,
            self._start.group_id,
            rollout,
            version_tag=self._start.version_tag,
            trajectories=[trajectory],
            # Who has pinned the turn knows more than the gateway did.
            placements=asked.placements if self._state.pin is None else (),
            lifetime=self._lifetime,
            changed=lambda: None,
            label=f"turn{asked.turn}-",
            route=functools.partial(self._route, branch),
            conversation=True,
        )

    async def _route(self, branch: Branch, request: RouteRequest) -> RouteResult:
        """As an ordinary activity: in a workflow that takes signals and continues as new no other will do."""
        prefer, self._state.pin = self._state.pin or branch.instance, None
        return await calls.route.ordinary(request.model_copy(update={"prefer": prefer}), summary="route")
