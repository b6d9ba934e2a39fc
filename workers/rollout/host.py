"""One engine on behalf of one run: its life, its weights, and when generate calls may use it.

Promises:
- requests reach the engine only in SERVING, that is at a version that was verified, loaded and probed;
- no request is in the engine while its weights change, so that one request has exactly one version (L1, L5);
- after a failed update nobody is let in until a complete good one (QUARANTINED);
- an engine that died or is stuck is no longer offered to anyone, and its callers are told; a start makes a new one;
- another run is refused while this one's lease holds; a lease that nobody renews runs out (L11).

Operations run one at a time and to their end, also when the activity that asked for one is cancelled.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...schemas.errors import EngineUnavailable, InstanceBusy, InvariantViolated, PsrlError, WeightsRefused
from ...schemas.ids import InstanceId, RunId, Version
from ...schemas.messages.rollout import EngineSpec, InstanceReport, InstanceState, PullResult
from ...schemas.weights import WeightProbe
from .engine import Engine
from .gate import Gate
from .source import WeightSource
from .watchdog import Watchdog

log = logging.getLogger(__name__)

LEASE_S = 180.0
"""A run that has not asked for anything for so long loses its instance to the next that wants it."""
INTERRUPT_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 900.0
NO_VERSION = Version(-1)

_S = InstanceState
LEGAL: dict[InstanceState, frozenset[InstanceState]] = {
    _S.STOPPED: frozenset({_S.STARTING}),
    _S.STARTING: frozenset({_S.PULLING, _S.QUARANTINED, _S.STOPPED}),
    _S.PULLING: frozenset({_S.PAUSING, _S.QUARANTINED, _S.STARTING, _S.STOPPED}),
    _S.PAUSING: frozenset({_S.PULLING, _S.SERVING, _S.QUARANTINED, _S.STOPPED}),
    _S.SERVING: frozenset({_S.PAUSING, _S.QUARANTINED, _S.STOPPED}),
    _S.QUARANTINED: frozenset({_S.PULLING, _S.STOPPED}),
}
"""From each state, the states that may follow. PAUSING also stands for paused with good weights."""

Result = TypeVar("Result")


class Host:
    def __init__(self, instance: InstanceId, make_engine: Callable[[], Engine], weights: WeightSource) -> None:
        self.instance = instance
        self.gate = Gate()
        self.changed = asyncio.Event()
        """Set when the coordinator should know at once."""
        self._make_engine = make_engine
        self._weights = weights
        self._engine: Engine | None = None
        self._newest: Engine | None = None
        """`_engine`, or the one that is still being started."""
        self._spec: EngineSpec | None = None
        self._state = InstanceState.STOPPED
        self._version = NO_VERSION
        self._pulled: PullResult | None = None
        self._trusted = False
        """Whether the weights in the engine are whole, even if of no published version."""
        self._fault = ""
        """Why the engine was given up although its process may not have ended yet."""
        self._paused = False
        self._watchdog = Watchdog(self.gate)
        self._leased_at = 0.0
        self._lock = asyncio.Lock()
        self._operations: set[asyncio.Task[Any]] = set()
        self._callers = self._received = self._tokens_total = 0
        self.tokens = 0
        """Stored since the engine was last started."""

    # --- what generate calls use -------------------------------------------------------------------------------------

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Counts a generate call for the report."""
        self._received += 1
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1

    async def enter(self, run_id: RunId, tag: int, patience_s: float) -> Version | None:
        """The version served; `None` when the gate stays shut for so long. The caller must take the gate's slot without
        awaiting anything in between. Raises `EngineUnavailable` when waiting cannot help."""
        self.engine_of(run_id)
        if not await self.gate.enter(patience_s):
            return None
        self.engine_of(run_id)
        if self._version < tag:
            raise EngineUnavailable(f"{self.instance} serves version {self._version}; version {tag} is needed")
        return self._version

    def engine_of(self, run_id: RunId) -> Engine:
        """The run's living engine. Raises `EngineUnavailable`."""
        if self._spec is None or self._engine is None:
            raise EngineUnavailable(f"{self.instance} has no engine; start_engine comes first")
        if self._spec.run_id != run_id:
            raise EngineUnavailable(f"{self.instance} serves run {self._spec.run_id}, not {run_id}")
        if self._fault or not self._engine.alive():
            reason = self._fault or "the engine is dead"
            raise EngineUnavailable(f"{self.instance}: {reason}; start_engine makes a new one")
        return self._engine

    def spec_of(self, run_id: RunId) -> EngineSpec:
        self.engine_of(run_id)
        assert self._spec is not None
        return self._spec

    def count_tokens(self, tokens: int) -> None:
        self._tokens_total += tokens
        self.tokens += tokens

    # --- what the instance's workflow asks for -----------------------------------------------------------------------

    async def start(self, spec: EngineSpec) -> None:
        """Afterwards the engine lives, lets nobody in, and waits for a pull. One that may be broken is made anew."""
        await self._one_at_a_time(self._start(spec))

    async def pause(self, run_id: RunId, interrupt: bool) -> None:
        await self._one_at_a_time(self._pause(run_id, interrupt))

    async def pull(self, run_id: RunId, version: Version) -> PullResult:
        """Raises `WeightsRefused` when bytes or loaded weights are not what was published, `EngineUnavailable` when the
        engine failed; another pull may repair either."""
        return await self._one_at_a_time(self._pull(run_id, version))

    async def resume(self, run_id: RunId) -> None:
        await self._one_at_a_time(self._resume(run_id))

    async def release(self, run_id: RunId) -> None:
        """Does nothing when the instance does not serve this run."""
        await self._one_at_a_time(self._release(run_id))

    def renew_lease(self, run_id: RunId) -> None:
        """Raises `EngineUnavailable` when the run has no living engine here."""
        self.engine_of(run_id)
        self._leased_at = time.monotonic()

    # --- what the process asks for -----------------------------------------------------------------------------------

    async def interrupt(self) -> None:
        """Before the process ends: running generations store what they have and go on elsewhere."""
        await self._one_at_a_time(self._shut(interrupt=True))

    async def shutdown(self) -> None:
        """Stop the engine's processes; the last call. An operation in progress loses its engine."""
        if self._lock.locked() and self._newest is not None:
            await asyncio.to_thread(self._newest.shutdown)
        await self._one_at_a_time(self._stop())

    def notice_death(self) -> None:
        """Called often: an engine that died by itself is no longer offered to anyone."""
        settled = self._state in (_S.SERVING, _S.PAUSING, _S.PULLING)
        if settled and self._engine is not None and not self._engine.alive():
            log.error("%s: the engine died", self.instance)
            self._distrust()
            self._to(InstanceState.QUARANTINED)

    def notice_stall(self) -> None:
        """Called often, from the event loop: an engine that lives but does nothing is ended, so that its callers go on
        elsewhere and the workflow starts another."""
        engine, draining = self._engine, self._state is InstanceState.PAUSING and self.gate.inside > 0
        watched = self._state is InstanceState.SERVING or draining
        if not watched or engine is None or self._spec is None or not engine.alive():
            self._watchdog.reset()
            return
        limit_s = self._spec.rollout.stall_timeout_s
        why = self._watchdog.look(engine, limit_s)
        if why:
            self._give_up(engine, f"the engine is stuck: {why} (rollout.stall_timeout_s={limit_s:g})")
            self._to(InstanceState.QUARANTINED)

    def report(self) -> InstanceReport:
        limit = self._spec.max_num_seqs if self._spec else 0
        running = min(self.gate.inside, limit)
        alive = self._engine is not None and self._engine.alive()
        capacity = self._engine.kv_capacity_tokens if self._engine is not None and alive else 0
        return InstanceReport(
            instance=self.instance,
            run_id=self._spec.run_id if self._spec else "",
            state=self._state,
            version=self._version,
            running=running,
            waiting=self._callers - running,
            received=self._received,
            kv_cache_usage=min(1.0, self.gate.tokens_inside / capacity) if capacity else 0.0,
            max_num_seqs=limit,
            pid=os.getpid(),
            tokens_total=self._tokens_total,
        )

    # --- operations, one at a time -----------------------------------------------------------------------------------

    async def _start(self, spec: EngineSpec) -> None:
        self._refuse_while_leased(spec.run_id)
        self.tokens = 0
        if self._spec == spec and self._trusted and self._engine is not None and self._engine.alive():
            await self._shut(interrupt=True)
            self._leased_at = time.monotonic()
            return
        await self._stop()
        self._spec, self._leased_at = spec, time.monotonic()
        self._to(InstanceState.STARTING)
        engine = self._newest = self._make_engine()
        try:
            await engine.start(spec)
        except BaseException as error:
            await asyncio.to_thread(engine.shutdown)
            self._spec = None
            self._to(InstanceState.STOPPED)
            if isinstance(error, PsrlError) or not isinstance(error, Exception):
                raise
            raise EngineUnavailable(f"{self.instance}: the engine did not start: {error!r}") from error
        self._engine, self._trusted, self._fault, self._leased_at = engine, True, "", time.monotonic()

    async def _pause(self, run_id: RunId, interrupt: bool) -> None:
        self.renew_lease(run_id)
        await self._shut(interrupt)

    async def _pull(self, run_id: RunId, version: Version) -> PullResult:
        self.renew_lease(run_id)
        if self._state is InstanceState.SERVING:
            raise InvariantViolated(f"{self.instance}: new weights while requests are admitted; pause comes first")
        if self._pulled is not None and self._pulled.version == version:
            return self._pulled
        before = self._state
        self._to(InstanceState.PULLING)
        began = time.perf_counter()
        try:
            lease = await self._weights.lease(run_id, version)
        except BaseException:
            # Nothing was touched: what is in the engine is as good as before, unless it died meanwhile.
            if self._state is InstanceState.PULLING:
                self._to(before)
            raise
        read = time.perf_counter()
        with lease:
            difference = await self._load(lease.tensors, version, lease.manifest.probe)
        self._pulled = PullResult(
            version=version,
            bytes=lease.manifest.total_bytes,
            seconds_read=read - began,
            seconds_load=time.perf_counter() - read,
            probe_max_abs_diff=difference,
        )
        self._version, self._trusted, self._leased_at = version, True, time.monotonic()
        self._to(InstanceState.PAUSING)
        return self._pulled

    async def _resume(self, run_id: RunId) -> None:
        self.renew_lease(run_id)
        if self._state is InstanceState.SERVING:
            return
        if self._pulled is None:
            raise EngineUnavailable(f"{self.instance} has no weights to serve; pull_weights comes first")
        await self._set_paused(False)
        self._to(InstanceState.SERVING)
        self.gate.open()

    async def _release(self, run_id: RunId) -> None:
        if self._spec is not None and self._spec.run_id == run_id:
            await self._stop()

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _shut(self, interrupt: bool) -> None:
        """Let nobody in, and wait until nobody is inside."""
        if self._state is not InstanceState.SERVING:
            return
        self.gate.shut()
        self._to(InstanceState.PAUSING)
        try:
            async with asyncio.timeout(INTERRUPT_TIMEOUT_S if interrupt else None):
                assert self._engine is not None
                assert self._spec is not None
                # A drain starts none of them: here they would wait for its end, elsewhere there may be a free slot.
                if queued := self.gate.queued(self._spec.max_num_seqs):
                    await self._engine.abort(queued)
                await self._set_paused(True, interrupt)
                await self.gate.settle(self._engine)
        except Exception as error:
            reason = self._fault or f"the engine could not be paused: {error!r}"
            if self._engine is not None:
                self._give_up(self._engine, reason)
            self._to(InstanceState.QUARANTINED)
            raise EngineUnavailable(f"{self.instance}: {reason}") from error

    async def _load(self, tensors: Any, version: Version, probe: WeightProbe) -> float:
        """Load and probe; returns the largest difference. From its first line until a good probe, nothing in the engine
        may be served."""
        assert self._engine is not None
        assert self._spec is not None
        self._distrust()
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await self._set_paused(True)
                await self._engine.load(tensors, version)
                await self._set_paused(False)
                found = await self._engine.probe(probe.token_ids)
            difference = max((abs(a - b) for a, b in zip(found, probe.logprobs, strict=True)), default=0.0)
            # Also refuses NaN, which no comparison is true for.
            tolerance = self._spec.rollout.weight_probe_tolerance
            if not difference <= tolerance or math.isnan(sum(found)):
                raise WeightsRefused(
                    f"{self.instance}: version {version} is loaded, but its log-probs differ from the trainer's by "
                    f"{difference:.3g}; allowed is rollout.weight_probe_tolerance={tolerance}"
                )
        except TimeoutError as error:
            self._give_up(self._engine, f"loading version {version} took more than {LOAD_TIMEOUT_S:.0f} s")
            self._to(InstanceState.QUARANTINED)
            raise EngineUnavailable(f"{self.instance}: no version {version} after {LOAD_TIMEOUT_S} s") from error
        except BaseException:
            self._to(InstanceState.QUARANTINED)
            raise
        return difference

    async def _stop(self) -> None:
        """Also ends every stream that is still open, so that no generate call waits for a dead engine."""
        engine, self._engine, self._newest = self._engine, None, None
        self.gate.shut()
        if engine is not None:
            try:
                async with asyncio.timeout(INTERRUPT_TIMEOUT_S):
                    await self.gate.settle(engine, patience_s=0)
            except Exception as error:  # noqa: BLE001 - a broken engine is stopped all the same
                log.warning("%s: requests were left in the engine: %r", self.instance, error)
            await asyncio.to_thread(engine.shutdown)
        self._spec, self._paused, self._fault = None, False, ""
        self._distrust()
        self._to(InstanceState.STOPPED)

    async def _set_paused(self, paused: bool, interrupt: bool = True) -> None:
        assert self._engine is not None
        if paused != self._paused:
            await (self._engine.pause(interrupt) if paused else self._engine.resume())
            self._paused = paused

    def _give_up(self, engine: Engine, reason: str) -> None:
        """End an engine that does not answer. Its streams fail, so that what they have is stored."""
        log.error("%s: %s", self.instance, reason)
        self._fault = reason
        self._distrust()
        engine.kill()

    def _distrust(self) -> None:
        self.gate.shut()
        self._version, self._pulled, self._trusted = NO_VERSION, None, False

    def _refuse_while_leased(self, run_id: RunId) -> None:
        silent = time.monotonic() - self._leased_at
        if self._spec is not None and self._spec.run_id != run_id and silent < LEASE_S:
            raise InstanceBusy(
                f"{self.instance} serves run {self._spec.run_id}, which asked {silent:.0f} s ago; run {run_id} "
                f"can have it when that run ends, or is silent for {LEASE_S:.0f} s"
            )

    def _to(self, state: InstanceState) -> None:
        if state is self._state:
            return
        if state not in LEGAL[self._state]:
            raise InvariantViolated(f"{self.instance}: {self._state} -> {state} is not allowed")
        self._state = state
        self.changed.set()

    async def _one_at_a_time(self, operation: Coroutine[Any, Any, Result]) -> Result:
        async def locked() -> Result:
            async with self._lock:
                return await operation

        task = asyncio.create_task(locked())
        self._operations.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._operations.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # Retrieved here, in case the activity that asked is gone.
            log.warning("%s: %r", self.instance, task.exception())
