"""One turn of one trajectory, continued on this host's engine, storing tokens as they come. Used by `Calls`.

Promises: a finished turn is answered from the store (L8); a later attempt continues from the last stored token (L6);
every row is stored only while this attempt owns the trajectory; every token carries the version that sampled it, and
that is never older than the tag (L1, L5); with `one_version` a turn is never continued under another version, but begun
anew from its prompt; cancellation aborts the request in the engine, and what was stored stays.
"""

import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

from ...activities.generation.turns import StoredTurn, TurnStore, fence_number
from ...activities.generation.writer import Refused, SegmentRow, SegmentWriter
from ...activities.store.codec import encode_ids, encode_logprobs
from ...schemas.errors import EngineUnavailable, InvariantViolated
from ...schemas.ids import Version, engine_request
from ...schemas.messages.rollout import Sampling, SegmentEnd, TurnRequest, TurnResult
from .engine import Chunk, EngineRequest, StreamEnd
from .host import Host

GATE_PATIENCE_S = 3.0
"""How long a request waits for a weight update to end before it is routed elsewhere."""
MAX_CHUNK_TOKENS = 32
ENDS = {
    StreamEnd.STOP: SegmentEnd.STOP,
    StreamEnd.LENGTH: SegmentEnd.LENGTH,
    StreamEnd.ABORTED: SegmentEnd.INTERRUPTED,
}


class InEngine:
    """What a turn has reached: set by its generator, read by who waits for it."""

    def __init__(self) -> None:
        self.stored = 0
        """Tokens of the turn in the store."""
        self._abort: Callable[[], Awaitable[None]] | None = None
        self._was_inside = False

    def begins(self) -> None:
        self._was_inside = False

    @contextmanager
    def during(self, abort: Callable[[], Awaitable[None]]) -> Iterator[None]:
        self._abort, self._was_inside = abort, True
        try:
            yield
        finally:
            self._abort = None

    async def leave(self) -> bool:
        """Its stream ends with what was sampled. False: it has not entered the engine, and nothing would be lost; one
        that is storing its last tokens ends by itself."""
        if self._abort is not None:
            await self._abort()
        return self._was_inside


@dataclass(slots=True)
class Progress:
    """What one call has sampled, and how much of it is stored."""

    request: TurnRequest
    fence: int
    version: Version
    seq: int
    stored: int
    """Tokens of the turn in the store, earlier calls included."""
    claims: bool
    """The first row takes the trajectory: no separate claim for the common case of one call and one row."""
    prompt_tokens: int
    """Before the turn."""
    kv_kept: bool | None = None
    """Of the next row, when it is the first of a continuation."""
    new_tokens: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    since: float = field(default_factory=time.time)
    """Wall clock at the beginning of the row, for people. Durations are measured by the other clock, which no one can
    set."""
    ticks: float = field(default_factory=time.monotonic)

    def add(self, chunk: Chunk) -> None:
        if len(chunk.token_ids) != len(chunk.logprobs):
            raise InvariantViolated(f"L5: {len(chunk.token_ids)} ids with {len(chunk.logprobs)} log-probs")
        if self.stored and not self.new_tokens:
            self.kv_kept = chunk.cached_tokens > self.prompt_tokens
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.new_tokens += len(chunk.token_ids)


class Generator:
    def __init__(self, host: Host, turns: TurnStore, writer: SegmentWriter) -> None:
        self._host = host
        self._turns = turns
        self._writer = writer
        self._requests = itertools.count()

    async def generate(self, request: TurnRequest, attempt: int, inside: InEngine) -> TurnResult:
        """Raises `StaleAttempt` when a newer attempt owns the trajectory, `EngineUnavailable` when this host cannot."""
        fence = fence_number(request.call, attempt)
        inside.begins()
        with self._host.counts.caller():
            if request.call == 0 and attempt == 1 and not (request.turn or request.conversation):
                try:
                    return await self._produce(request, fence, StoredTurn(), True, inside)
                except Refused:
                    # Not the first after all: a workflow that was reset repeats its calls. The store knows more.
                    inside.begins()
            stored = await self._turns.claim(request, fence)
            if stored.end is not None:
                return self._result(request, stored.end, len(stored.token_ids))
            try:
                return await self._produce(request, fence, stored, False, inside)
            except Refused:
                raise await self._turns.refusal(request, fence) from None

    async def _produce(
        self, request: TurnRequest, fence: int, turn: StoredTurn, claims: bool, inside: InEngine
    ) -> TurnResult:
        ref = request.trajectory
        prompt = [*await self._turns.prompt(ref), *turn.context]
        version = await self._host.enter(ref.run_id, request.version_tag, GATE_PATIENCE_S)
        if version is not None and request.one_version and turn.version not in (None, version):
            turn = await self._turns.begin_anew(request, fence)
            version = await self._host.enter(ref.run_id, request.version_tag, GATE_PATIENCE_S)
        stored = inside.stored = len(turn.token_ids)
        if version is None:
            return self._result(request, SegmentEnd.INTERRUPTED, stored)
        progress = Progress(request, fence, version, turn.segments, stored, claims, len(prompt))
        if stored >= request.sampling.max_tokens:
            end = SegmentEnd.LENGTH
        else:
            end = await self._stream(progress, [*prompt, *turn.token_ids], inside)
        if progress.ids or end is not SegmentEnd.INTERRUPTED:
            await self._store(progress, end)
        return self._result(request, end, progress.stored, progress)

    async def _stream(self, progress: Progress, ids: list[int], inside: InEngine) -> SegmentEnd:
        """Sample until the engine ends the request. The slot is taken in the same step in which the gate was open."""
        request = progress.request
        spec, engine = self._host.spec_of(request.trajectory.run_id), self._host.engine_of(request.trajectory.run_id)
        asked = EngineRequest(
            request_id=engine_request(request.trajectory.group_id, request.trajectory.index, next(self._requests)),
            prompt_ids=ids,
            sampling=_rest(request.sampling, progress.stored),
            cache_salt=f"{request.trajectory.run_id}:{progress.version}",
            chunk_tokens=_chunk_tokens(spec.flush_tokens),
        )
        row_tokens = _row_tokens(spec.flush_tokens, asked.chunk_tokens)
        try:
            abort = functools.partial(engine.abort, [asked.request_id])
            alone = request.turn or request.conversation
            shares = asked.request_id if alone else request.trajectory.group_id
            slot = self._host.gate.slot(asked.request_id, progress.prompt_tokens, progress.stored, shares)
            entered = time.monotonic()
            with slot, inside.during(abort):
                async with aclosing(engine.generate(asked)) as stream:
                    async for chunk in stream:
                        if not progress.new_tokens:
                            self._host.counts.first_token(time.monotonic() - entered)
                        progress.add(chunk)
                        self._host.gate.progress(asked.request_id, len(chunk.token_ids))
                        self._host.counts.sampled(len(chunk.token_ids))
                        if chunk.end is not None:
                            return _checked(progress, chunk)
                        due = time.monotonic() - progress.ticks >= spec.flush_interval_s
                        if progress.ids and (len(progress.ids) >= row_tokens or due):
                            with self._host.gate.storing():
                                await self._store(progress, None)
                            inside.stored = progress.stored
        except EngineUnavailable:
            self._host.notice_death()  # The coordinator must not send the next call here.
            # What the engine gave before it died is good, and would be sampled again for nothing.
            if progress.ids:
                await self._store(progress, None)
            raise
        raise EngineUnavailable(f"the engine dropped request {asked.request_id}")

    async def _store(self, progress: Progress, end: SegmentEnd | None) -> None:
        """One row of what is not stored yet. Raises `Refused`."""
        ref, now = progress.request.trajectory, time.monotonic()
        finished_at = progress.since + now - progress.ticks
        final = end is not None and end is not SegmentEnd.INTERRUPTED
        row = SegmentRow(
            run_id=ref.run_id,
            group_id=ref.group_id,
            index=ref.index,
            turn=progress.request.turn,
            seq=progress.seq,
            fence=progress.fence,
            claims=progress.claims,
            version=progress.version,
            instance=self._host.instance,
            tokens=len(progress.ids),
            token_ids=encode_ids(progress.ids),
            logprobs=encode_logprobs(progress.logprobs),
            end=end.value if final and end else None,
            started_at=progress.since,
            finished_at=finished_at,
            kv_kept=progress.kv_kept,
        )
        await self._writer.write(row)
        self._host.counts.stored(len(progress.ids))
        progress.stored += len(progress.ids)
        progress.seq += 1
        progress.claims, progress.kv_kept = False, None
        progress.ids, progress.logprobs = [], []
        progress.since, progress.ticks = finished_at, now

    @staticmethod
    def _result(request: TurnRequest, end: SegmentEnd, tokens: int, progress: Progress | None = None) -> TurnResult:
        new = progress.new_tokens if progress else 0
        versions = (int(progress.version),) if progress and new else ()
        return TurnResult(index=request.trajectory.index, end=end, tokens=tokens, new_tokens=new, versions=versions)


def _chunk_tokens(flush_tokens: int) -> int:
    return max(1, min(flush_tokens // 8, MAX_CHUNK_TOKENS))


def _row_tokens(flush_tokens: int, chunk_tokens: int) -> int:
    """A row is stored before it has `flush_tokens`: a crash also costs what the last chunk has too much, and what the
    engine holds back or samples while the row is being committed."""
    return flush_tokens - 2 * (chunk_tokens - 1)


def _checked(progress: Progress, last: Chunk) -> SegmentEnd:
    """The engine's own account of versions must agree with ours."""
    assert last.end is not None
    if progress.new_tokens and any(version != str(progress.version) for version in last.versions):
        raise InvariantViolated(f"L5: sampled under {', '.join(last.versions)}, taken for version {progress.version}")
    return ENDS[last.end]


def _rest(sampling: Sampling, done: int) -> Sampling:
    """What is left of the turn. A continuation draws other random numbers than the tokens before it did."""
    if not done:
        return sampling
    seed = None if sampling.seed is None else (sampling.seed + done * 0x9E3779B97F4A7C15) % 2**63
    return sampling.model_copy(update={"max_tokens": sampling.max_tokens - done, "seed": seed})
