"""One engine on behalf of one run: its life, its weights, and when generate calls may use it.

Promises:
- requests reach the engine only in SERVING, that is at a version that was verified, loaded and probed;
- no request is in the engine while its weights change, so that one request has exactly one version (L1, L5);
- after a failed update nobody is let in until a complete good one (QUARANTINED);
- an engine that died or is stuck is no longer offered to anyone (LOST), and its callers are told; a start makes a new
  one;
- another run is refused while this one's lease holds (`Tenancy`).

Operations run one at a time and to their end, also when the activity that asked for one is cancelled.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence

from ...activities.weights.transport import Lease
from ...schemas.cost_model import CostModel, layout, read_cost_model
from ...schemas.errors import EngineUnavailable, EngineUnfit, InvariantViolated, PsrlError
from ...schemas.ids import InstanceId, RunId, Version
from ...schemas.messages.rollout import EngineSpec, InstanceReport, InstanceState, PullResult
from ...workflows.machine import Machine
from .counts import Counts
from .engine import Engine
from .gate import Gate
from .life import LIFE, WHOLE, WITHOUT_ENGINE
from .loading import load
from .operations import Operations
from .source import WeightSource
from .tenancy import Tenancy
from .watchdog import Watchdog

log = logging.getLogger(__name__)

INTERRUPT_TIMEOUT_S = 60.0
NO_VERSION = Version(-1)


class Host:
    def __init__(self, instance: InstanceId, make_engine: Callable[[], Engine], weights: WeightSource) -> None:
        self.instance = instance
        self.gate = Gate()
        self.changed = asyncio.Event()
        """Set when the coordinator should know at once."""
        self.counts = Counts()
        self._make_engine = make_engine
        self._weights = weights
        self._life = Machine(instance, LIFE, InstanceState.STOPPED)
        self._operations = Operations(instance)
        self._engine: Engine | None = None
        self._tenancy = Tenancy(instance)
        self._holds: PullResult | None = None
        """The verified version in the engine; none before the first pull and while it is not certain."""
        self._lost = ""
        """Why the engine is LOST: its process may not have ended yet."""
        self._cost: CostModel | None = None
        self._pull_s = 0.0
        """Of the last pull that changed the engine's version."""
        self._watchdog = Watchdog(self.gate)

    @property
    def version(self) -> Version:
        """That requests are, or could be, served with."""
        return Version(self._holds.version) if self._holds is not None else NO_VERSION

    # --- what generate calls use -------------------------------------------------------------------------------------

    async def enter(self, run_id: RunId, tag: int, patience_s: float) -> Version | None:
        """The version served; `None` when the gate stays shut for so long. The caller must take the gate's slot without
        awaiting anything in between. Raises `EngineUnavailable` when waiting cannot help."""
        self.engine_of(run_id)
        if not await self.gate.enter(patience_s):
            return None
        self.engine_of(run_id)
        if self.version < tag:
            raise EngineUnavailable(f"{self.instance} serves version {self.version}; version {tag} is needed")
        return self.version

    def engine_of(self, run_id: RunId) -> Engine:
        """The run's living engine. Raises `EngineUnavailable`."""
        if self._tenancy.spec is None or self._engine is None or self._life.state is InstanceState.STARTING:
            raise EngineUnavailable(f"{self.instance} has no engine; start_engine comes first")
        if self._tenancy.spec.run_id != run_id:
            raise EngineUnavailable(f"{self.instance} serves run {self._tenancy.spec.run_id}, not {run_id}")
        if self._life.state is InstanceState.LOST or not self._engine.alive():
            reason = self._lost or "the engine died"
            raise EngineUnavailable(f"{self.instance}: {reason}; start_engine makes a new one")
        return self._engine

    def spec_of(self, run_id: RunId) -> EngineSpec:
        self.engine_of(run_id)
        assert self._tenancy.spec is not None
        return self._tenancy.spec

    async def interrupt_requests(self, run_id: RunId, request_ids: Sequence[str]) -> None:
        """End their segments: what they have is stored, and they are routed anew. Those that have left, or are another
        run's, are passed over. Raises `EngineUnavailable`."""
        there = [one for one in request_ids if one in self.gate.requests]
        if there:
            await self.engine_of(run_id).abort(there)

    # --- what the instance's workflow asks for -----------------------------------------------------------------------

    async def start(self, spec: EngineSpec) -> None:
        """Afterwards the engine lives, lets nobody in, and waits for a pull. One that may be broken is made anew."""
        await self._operations.run(self._start(spec))

    async def pause(self, run_id: RunId, interrupt: bool) -> None:
        await self._operations.run(self._pause(run_id, interrupt))

    async def pull(self, run_id: RunId, version: Version) -> PullResult:
        """Raises `WeightsRefused` when bytes or loaded weights are not what was published, `EngineUnavailable` when the
        engine failed; another pull may repair either."""
        return await self._operations.run(self._pull(run_id, version))

    async def resume(self, run_id: RunId) -> None:
        await self._operations.run(self._resume(run_id))

    async def release(self, run_id: RunId) -> None:
        """Does nothing when the instance does not serve this run."""
        await self._operations.run(self._release(run_id))

    def renew_lease(self, run_id: RunId) -> None:
        """Raises `EngineUnavailable` when the run has no living engine here."""
        self.engine_of(run_id)
        self._tenancy.renew()

    # --- what the process asks for -----------------------------------------------------------------------------------

    async def interrupt(self) -> None:
        """Before the process ends: running generations store what they have and continue elsewhere."""
        await self._operations.run(self._shut(interrupt=True))

    async def shutdown(self) -> None:
        """Stop the engine's processes; the last call. An operation in progress loses its engine."""
        if self._operations.busy and self._engine is not None:
            await asyncio.to_thread(self._engine.shutdown)
        await self._operations.run(self._stop())

    def notice_death(self) -> None:
        """Called often: an engine that died by itself is no longer offered to anyone."""
        if self._engine is not None and self._life.state not in WITHOUT_ENGINE and not self._engine.alive():
            self._lose("the engine died")

    def notice_stall(self) -> None:
        """Called often, from the event loop: an engine that lives but does nothing is ended, so that its callers
        continue elsewhere and the workflow starts another."""
        engine, draining = self._engine, self._life.state is InstanceState.PAUSING and self.gate.inside > 0
        watched = self._life.state is InstanceState.SERVING or draining
        if not watched or engine is None or self._tenancy.spec is None or not engine.alive():
            self._watchdog.reset()
            return
        limit_s = self._tenancy.spec.rollout.stall_timeout_s
        why = self._watchdog.look(engine, limit_s)
        if why:
            self._lose(f"the engine is stuck: {why} (rollout.stall_timeout_s={limit_s:g})")

    def report(self) -> InstanceReport:
        limit = self._tenancy.spec.max_num_seqs if self._tenancy.spec else 0
        running = min(self.gate.inside, limit)
        alive = self._engine is not None and self._engine.alive()
        capacity = self._engine.kv_capacity_tokens if self._engine is not None and alive else 0
        inside = self.gate.requests.values()
        throughput = self.counts.rate(time.monotonic())
        return InstanceReport(
            instance=self.instance,
            run_id=self._tenancy.spec.run_id if self._tenancy.spec else "",
            state=self._life.state,
            version=self.version,
            running=running,
            waiting=self.counts.callers - running,
            received=self.counts.received,
            kv_cache_usage=min(1.0, self.gate.tokens_inside / capacity) if capacity else 0.0,
            kv_tokens=self.gate.tokens_inside,
            kv_capacity_tokens=capacity,
            throughput=throughput,
            ttft_s=self.counts.take_first_token_s(),
            itl_s=running / throughput if throughput else None,
            engine_waiting=self.gate.beyond(limit, capacity) if capacity else 0,
            requests=tuple(self.gate.requests),
            prompt_tokens=tuple(request.prompt for request in inside),
            generated_tokens=tuple(request.sampled for request in inside),
            cost=self._cost,
            record_every_s=self._tenancy.spec.record_every_s if self._tenancy.spec else 0.0,
            max_num_seqs=limit,
            pid=os.getpid(),
            tokens_total=self.counts.tokens_total,
            migration=self._tenancy.spec.migration if self._tenancy.spec else None,
            pull_s=self._pull_s,
        )

    # --- operations, one at a time -----------------------------------------------------------------------------------

    async def _start(self, spec: EngineSpec) -> None:
        self._tenancy.refuse_others(spec.run_id)
        kept = (
            self._tenancy.spec == spec
            and self._life.state in WHOLE
            and self._engine is not None
            and self._engine.alive()
        )
        if kept:
            await self._shut(interrupt=True)
        else:
            await self._stop()
            self._tenancy.begin(spec)
            await self._make(spec)
        self._tenancy.renew()
        self.counts.engine_started()

    async def _make(self, spec: EngineSpec) -> None:
        self._to(InstanceState.STARTING)
        engine = self._engine = self._make_engine()
        try:
            self._cost = await asyncio.to_thread(_cost_of, spec)
            await engine.start(spec)
        except BaseException as error:
            await asyncio.to_thread(engine.shutdown)
            self._engine = None
            self._tenancy.end()
            self._to(InstanceState.STOPPED)
            if isinstance(error, PsrlError) or not isinstance(error, Exception):
                raise
            raise EngineUnavailable(f"{self.instance}: the engine did not start: {error!r}") from error
        self._to(InstanceState.STARTED)

    async def _pause(self, run_id: RunId, interrupt: bool) -> None:
        self.renew_lease(run_id)
        await self._shut(interrupt)

    async def _pull(self, run_id: RunId, version: Version) -> PullResult:
        self.renew_lease(run_id)
        if self._life.state is InstanceState.SERVING:
            raise InvariantViolated(f"{self.instance}: new weights while requests are admitted; pause comes first")
        if self._holds is not None and self._holds.version == version:
            return self._holds
        before, began = self._life.state, time.perf_counter()
        self._to(InstanceState.PULLING)
        try:
            lease = await self._weights.lease(run_id, version)
        except BaseException:
            # Nothing was touched: what is in the engine is as good as before.
            self._arrive(before)
            raise
        read = time.perf_counter()
        with lease:
            difference = await self._load(lease, version)
        self._tenancy.renew()
        self._arrive(InstanceState.LOADED)
        self._holds = PullResult(
            version=version,
            bytes=lease.manifest.total_bytes,
            seconds_read=read - began,
            seconds_load=time.perf_counter() - read,
            probe_max_abs_diff=difference,
        )
        self._pull_s = time.perf_counter() - began
        return self._holds

    async def _resume(self, run_id: RunId) -> None:
        engine = self.engine_of(run_id)
        self.renew_lease(run_id)
        if self._life.state is InstanceState.SERVING:
            return
        if self._holds is None:
            raise EngineUnavailable(f"{self.instance} has no weights to serve; pull_weights comes first")
        try:
            async with asyncio.timeout(INTERRUPT_TIMEOUT_S):
                await engine.resume()
        except TimeoutError as error:
            raise self._given_up("the engine could not be resumed") from error
        self._arrive(InstanceState.SERVING)
        self.gate.open()

    async def _release(self, run_id: RunId) -> None:
        if self._tenancy.spec is not None and self._tenancy.spec.run_id == run_id:
            await self._stop()

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _shut(self, interrupt: bool) -> None:
        """Let nobody in, and wait until nobody is inside."""
        if self._life.state is not InstanceState.SERVING:
            return
        assert self._engine is not None
        assert self._tenancy.spec is not None
        self.gate.shut()
        self._to(InstanceState.PAUSING)
        try:
            async with asyncio.timeout(INTERRUPT_TIMEOUT_S if interrupt else None):
                # A drain starts none of them: here they would wait for its end, elsewhere there may be a free slot.
                if queued := self.gate.queued(self._tenancy.spec.max_num_seqs):
                    await self._engine.abort(queued)
                await self._engine.pause(interrupt)
                await self.gate.settle(self._engine)
        except Exception as error:
            raise self._given_up(f"the engine could not be paused: {error!r}") from error
        self._arrive(InstanceState.LOADED)

    async def _load(self, lease: Lease, version: Version) -> float:
        assert self._engine is not None
        assert self._tenancy.spec is not None
        self._holds = None
        try:
            return await load(self._engine, lease, version, self._tenancy.spec.rollout.weight_probe_tolerance)
        except TimeoutError as error:
            raise self._given_up(f"version {version} was not loaded in time") from error
        except EngineUnfit:  # says more than that the engine died of it
            if self._life.state is not InstanceState.LOST:
                self._to(InstanceState.QUARANTINED)
            raise
        except BaseException:
            self._arrive(InstanceState.QUARANTINED)
            raise

    async def _stop(self) -> None:
        """Also ends every stream that is still open, so that no generate call waits for a dead engine."""
        engine, self._engine, self._holds = self._engine, None, None
        self.gate.shut()
        if engine is not None:
            try:
                async with asyncio.timeout(INTERRUPT_TIMEOUT_S):
                    await self.gate.settle(engine, patience_s=0)
            except Exception as error:  # noqa: BLE001 - a broken engine is stopped all the same
                log.warning("%s: requests were left in the engine: %r", self.instance, error)
            await asyncio.to_thread(engine.shutdown)
        self._tenancy.end()
        self._lost = ""
        self._to(InstanceState.STOPPED)

    def _lose(self, reason: str) -> None:
        """End an engine that died or does not answer. Its streams fail, so that what they have is stored."""
        assert self._engine is not None
        log.error("%s: %s", self.instance, reason)
        self.gate.shut()
        self._holds, self._lost = None, reason
        self._to(InstanceState.LOST)
        self._engine.kill()

    def _given_up(self, reason: str) -> EngineUnavailable:
        """The engine is lost, if it was not before."""
        if self._life.state is not InstanceState.LOST:
            self._lose(reason)
        return EngineUnavailable(f"{self.instance}: {self._lost}")

    def _arrive(self, state: InstanceState) -> None:
        """At the end of an operation. One whose engine was lost meanwhile has failed."""
        if self._life.state is InstanceState.LOST:
            raise EngineUnavailable(f"{self.instance}: {self._lost}; start_engine makes a new one")
        self._to(state)

    def _to(self, state: InstanceState) -> None:
        if state is not self._life.state:
            self._life.to(state)
            self.changed.set()


def _cost_of(spec: EngineSpec) -> CostModel | None:
    return read_cost_model(spec.cost_model_path, layout()) if spec.cost_model_path else None
