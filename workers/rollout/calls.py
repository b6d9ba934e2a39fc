"""The generate calls of this host: each takes several turns of one group, which run side by side in the engine.

Promises:
- a turn runs once on this host, whoever waits for it: a call that asks for one that runs already attaches to it;
- a call returns when all of its turns have ended; when enough have, the others leaving the engine with what they have
  stored; or, `GATHER_S` after a turn needs a decision, without those that keep running in the engine;
- an error of one turn ends that turn alone;
- a turn that nobody waits for leaves the engine after a while, with what it has stored (L11).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from ...activities.generation.turns import fence_number
from ...schemas.errors import PsrlError, StaleAttempt
from ...schemas.ids import GroupId, InstanceId, RunId
from ...schemas.messages.rollout import (
    GenerateRequest,
    GenerateResult,
    SegmentEnd,
    TurnFailure,
    TurnRequest,
    TurnResult,
)
from ...schemas.text import described
from .generate import InEngine

log = logging.getLogger(__name__)

GATHER_S = 0.1
"""Interruptions come together, within the time that storing their last tokens takes."""
ORPHAN_S = 10.0
"""How long a turn runs for nobody: longer than the next call takes to come when the server is busy."""
CANCELLED_S = 1.0
"""The same after a call was cancelled: its caller has often asked for the rest of it already."""

Key = tuple[RunId, GroupId, int, int]


class Generates(Protocol):
    """`Generator`, or a scripted one in tests."""

    async def generate(self, request: TurnRequest, attempt: int, inside: InEngine) -> TurnResult: ...


class RunningTurn:
    """One turn on this host, from its first call until its result was taken or nobody wanted it."""

    def __init__(self, request: TurnRequest, attempt: int) -> None:
        self.request, self.attempt = request, attempt
        """Of the newest call that asked for it: the turn continues in its name when the store refuses an older one."""
        self.caller: Call | None = None
        self.inside = InEngine()
        self.task: asyncio.Future[TurnResult]
        self.left = False
        """It was told to leave the engine."""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def fence(self) -> int:
        return fence_number(self.request.call, self.attempt)

    @property
    def complete(self) -> bool:
        ended = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return ended and self.task.result().complete

    @property
    def over(self) -> bool:
        """Nothing more will come of it: who asks for the turn gets a new one."""
        return self.left or (self.task.done() and not self.complete)

    async def leave(self) -> None:
        """End it early. What the engine has sampled is stored."""
        with suppress(PsrlError):  # an engine that is dead ends its turns by itself
            if not await self.inside.leave():
                self.task.cancel()

    def result(self) -> TurnResult:
        index = self.request.trajectory.index
        if self.task.done() and not self.task.cancelled():
            error = self.task.exception()
            return self.task.result() if error is None else TurnResult(index=index, failure=_failure(error))
        end = SegmentEnd.INTERRUPTED if self.left or self.task.cancelled() else None
        return TurnResult(index=index, end=end, tokens=self.inside.stored)


class Calls:
    def __init__(self, instance: InstanceId, generator: Generates) -> None:
        self._instance, self._generator = instance, generator
        self._turns: dict[Key, RunningTurn] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def open(self, request: GenerateRequest, attempt: int) -> "Call":
        """Begins with every turn that does not run already."""
        call = Call(self, self._instance, request)
        call.turns = [self._attach(turn, attempt, call) for turn in request.each]
        return call

    async def close(self) -> None:
        """At the end of the process: nothing of it runs any more."""
        tasks = [turn.task for turn in self._turns.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._leaving, return_exceptions=True)

    def leave(self, turn: RunningTurn, call: "Call | None" = None) -> None:
        """On behalf of the call that waits for it; another that was overtaken by that one has no say."""
        if turn.caller is call and not turn.over:
            turn.left = True
            task = asyncio.create_task(turn.leave())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    def release(self, turn: RunningTurn, call: "Call", patience_s: float) -> None:
        """The call waits for it no longer; another must come within the given time."""
        if turn.caller is call:
            turn.caller = None
            turn.timer = asyncio.get_running_loop().call_later(patience_s, self._forget, turn)

    def taken(self, turn: RunningTurn, call: "Call") -> None:
        """The call has its result."""
        if turn.caller is call:
            turn.caller = None
            turn.task.add_done_callback(lambda _: self._remove(turn))

    def _attach(self, request: TurnRequest, attempt: int, call: "Call") -> RunningTurn:
        turn = self._turns.get(_key(request))
        if turn is not None and turn.fence > fence_number(request.call, attempt):
            return _late(request, attempt, turn)
        if turn is None or turn.over:
            turn = self._begin(request, attempt, after=turn)
        if turn.timer is not None:
            turn.timer.cancel()
        turn.request, turn.attempt, turn.caller = request, attempt, call
        return turn

    def _begin(self, request: TurnRequest, attempt: int, after: RunningTurn | None) -> RunningTurn:
        turn = self._turns[_key(request)] = RunningTurn(request, attempt)
        turn.task = asyncio.create_task(self._run(turn, after))
        return turn

    async def _run(self, turn: RunningTurn, after: RunningTurn | None) -> TurnResult:
        if after is not None and not after.task.done():
            await asyncio.wait([after.task])  # It stores what it has.
        while True:
            request, attempt = turn.request, turn.attempt
            try:
                return await self._generator.generate(request, attempt, turn.inside)
            except StaleAttempt:
                # Meanwhile the trajectory was elsewhere. If it has come back, it continues from what is stored now.
                if turn.request is request or turn.left:
                    raise

    def _forget(self, turn: RunningTurn) -> None:
        """Nobody came."""
        if not turn.task.done():
            log.info("nobody waits for %s any more", turn.request.trajectory)
            self.leave(turn)
        turn.task.add_done_callback(lambda _: self._remove(turn))

    def _remove(self, turn: RunningTurn) -> None:
        if turn.caller is None and self._turns.get(_key(turn.request)) is turn:
            del self._turns[_key(turn.request)]
        if turn.task.done() and not turn.task.cancelled():
            turn.task.exception()  # Retrieved here, in case nobody wanted it.


class Call:
    """One generate call while it waits."""

    def __init__(self, calls: Calls, instance: InstanceId, request: GenerateRequest) -> None:
        self._calls, self._instance, self._request = calls, instance, request
        self.turns: Sequence[RunningTurn] = ()

    @property
    def stored(self) -> int:
        """Tokens of its turns in the store, for people."""
        return sum(turn.inside.stored for turn in self.turns)

    async def result(self) -> GenerateResult:
        try:
            await self._wait()
        except asyncio.CancelledError:
            for turn in self.turns:
                self._calls.release(turn, self, CANCELLED_S)
            raise
        results = tuple(turn.result() for turn in self.turns)
        for turn, result in zip(self.turns, results, strict=True):
            if result.running:
                self._calls.release(turn, self, ORPHAN_S)
            else:
                self._calls.taken(turn, self)
        return GenerateResult(instance=self._instance, turns=results)

    async def _wait(self) -> None:
        """Until all have ended, or those that have need a decision."""
        loop = asyncio.get_running_loop()
        until: float | None = None
        while running := [turn for turn in self.turns if not turn.task.done()]:
            if self._enough:
                for turn in running:
                    self._calls.leave(turn, self)
            if until is None and (self._enough or self._decision_due):
                until = loop.time() + GATHER_S
            if until is not None and until <= loop.time():
                return
            left_s = None if until is None else until - loop.time()
            await asyncio.wait([turn.task for turn in running], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    @property
    def _enough(self) -> bool:
        return sum(turn.complete for turn in self.turns) >= self._request.enough

    @property
    def _decision_due(self) -> bool:
        ended = [turn for turn in self.turns if turn.task.done()]
        return any(self._request.one_by_one or not turn.complete for turn in ended)


def _late(request: TurnRequest, attempt: int, turn: RunningTurn) -> RunningTurn:
    """The answer to a call that was overtaken on its way."""
    late = RunningTurn(request, attempt)
    late.task = asyncio.get_running_loop().create_future()
    late.task.set_exception(
        StaleAttempt(
            f"trajectory {request.trajectory.group_id}/{request.trajectory.index} belongs to attempt {turn.fence}; "
            f"attempt {late.fence} is refused"
        )
    )
    return late


def _failure(error: BaseException) -> TurnFailure:
    """The border to the turns' tasks. What is no error of ours is a defect or the engine's: another instance is tried,
    as with a call that raised."""
    if not isinstance(error, PsrlError):
        log.error("a turn failed", exc_info=error)
    return TurnFailure(
        type=type(error).__name__,
        message=described(error),
        retryable=not isinstance(error, PsrlError) or error.retryable,
        defect=not isinstance(error, PsrlError),
    )


def _key(request: TurnRequest) -> Key:
    ref = request.trajectory
    return ref.run_id, ref.group_id, ref.index, request.turn
