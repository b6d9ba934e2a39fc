"""One engine that only takes time: continuous batching, in which every running sequence gets one token per pass.

All running sequences advance together, so one number, the tokens that a sequence would have got since the engine began,
says how far each of them is; it is brought forward only when the batch changes. Between two changes the cache grows by
one token per sequence and pass, and the time of `w` passes is `a*w + b*w*w`: both directions are solved exactly.

Promises: no sequence ends before the engine has taken the time of its tokens; never more than `slots` run; the cache
never holds more than `kv_capacity_tokens` (the newest are put back and prefilled again, as vLLM does).
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass
from itertools import count

from ...schemas.cost_model import CostModel


@dataclass(slots=True, eq=False)
class Sequence:
    """One trajectory in an engine, or on its way from one to another."""

    group: int
    index: int
    prompt: int
    length: int
    """Tokens that it will have sampled at its end."""
    sampled: float = 0.0
    """Up to when the engine took it up last. Parts of a token are kept: they are time that was spent."""
    begun: float = 0.0
    """The engine's `work` when it was taken up."""
    taken_up: int = 0
    """Times an engine has begun with it."""
    running: bool = False
    over: bool = False

    @property
    def name(self) -> str:
        """As the engine calls it."""
        return f"{self.group:06d}-{self.index}"

    @property
    def context(self) -> float:
        return self.prompt + self.sampled


class Engine:
    def __init__(
        self, cost: CostModel, prefill_s_per_token: float, slots: int, kv_capacity_tokens: float = math.inf
    ) -> None:
        self._cost, self._prefill_s, self._slots = cost, prefill_s_per_token, slots
        self._capacity = kv_capacity_tokens
        self._running: dict[Sequence, None] = {}
        self._waiting: deque[Sequence] = deque()
        self._ends: list[tuple[float, int, Sequence, int]] = []
        """By the work at which each ends; an entry is void once its sequence has left, or was taken up anew."""
        self._order = count()
        self._work = 0.0
        self._kv = 0.0
        self._known_at = 0.0
        """`_work` and `_kv` are of this moment. Later than now while prompts are prefilled."""
        self.paused = False
        """Running sequences are kept and get no token."""
        self.prefilled_again = 0.0
        """Tokens computed again because a sequence had lost its cache."""
        self.sampled = 0.0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def throughput(self) -> float:
        """Tokens per second, as the batch is now."""
        return 0.0 if self.paused else self._cost.throughput(len(self._running), self._kv)

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    def kv_tokens(self, now: float) -> float:
        self._advance(now)
        return self._kv

    def add(self, sequence: Sequence, now: float) -> None:
        self._advance(now)
        self._waiting.append(sequence)
        self._admit()

    def next_change(self) -> float:
        """When the next sequence ends, or the cache is full, if nothing changes before."""
        if self.paused or not self._running:
            return math.inf
        self._forget_void()
        passes = self._ends[0][0] - self._work
        if self._capacity < math.inf:
            passes = min(passes, (self._capacity - self._kv) / len(self._running))
        return self._known_at + self._seconds(max(0.0, passes))

    def change(self, now: float) -> list[Sequence]:
        """What was due now: sequences that have ended. Full of sequences that have not, the newest is put back."""
        self._advance(now)
        self._forget_void()
        ended = []
        while self._ends and self._ends[0][0] <= self._work + 1e-6:
            sequence = self._ends[0][2]
            self._leave(sequence)
            sequence.sampled, sequence.over = float(sequence.length), True
            ended.append(sequence)
            self._forget_void()
        while self._kv >= self._capacity - 1e-6:
            self._preempt()
        self._admit()
        return ended

    def remove(self, sequence: Sequence, now: float) -> None:
        """It is not wanted any more."""
        self._advance(now)
        if sequence.running:
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        self._admit()

    def answers(self, now: float) -> list[Sequence]:
        """All of them, with what they have: running ones, in the order in which they were taken up, then the others."""
        self.settle(now)
        return [*self._running, *self._waiting]

    def interrupt(self, now: float) -> list[Sequence]:
        """All of them leave."""
        out = self.answers(now)
        for sequence in list(self._running):
            self._leave(sequence)
        self._waiting.clear()
        return out

    def pause(self, now: float) -> None:
        self._advance(now)
        self.paused = True

    def resume(self, now: float) -> None:
        self._known_at, self.paused = max(self._known_at, now), False
        self._admit()

    def settle(self, now: float) -> None:
        """Bring what is counted up to this moment."""
        self._advance(now)
        for sequence in self._running:
            self._count(sequence)

    # --- time --------------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if now <= self._known_at:
            return
        if self._running and not self.paused:
            passes = self._passes(now - self._known_at)
            self._work += passes
            self._kv += passes * len(self._running)
        self._known_at = now

    def _terms(self) -> tuple[float, float]:
        """Seconds of `w` passes: first * w + second * w * w."""
        n = len(self._running)
        return self._cost.latency(n, self._kv), self._cost.attn_latency_k * n / 2

    def _seconds(self, passes: float) -> float:
        first, second = self._terms()
        return (first + second * passes) * passes

    def _passes(self, seconds: float) -> float:
        first, second = self._terms()
        return 2 * seconds / (first + math.sqrt(first * first + 4 * second * seconds))

    # --- the batch ---------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self._waiting and not self.paused and len(self._running) < self._slots:
            sequence = self._waiting[0]
            if self._running and self._kv + sequence.context + len(self._running) >= self._capacity:
                return
            self._waiting.popleft()
            self._begin(sequence)

    def _begin(self, sequence: Sequence) -> None:
        self._known_at += self._prefill_s * sequence.context
        self._kv += sequence.context
        self.prefilled_again += sequence.context if sequence.sampled else 0.0
        sequence.begun, sequence.running = self._work, True
        sequence.taken_up += 1
        self._running[sequence] = None
        end = self._work + sequence.length - sequence.sampled
        heapq.heappush(self._ends, (end, next(self._order), sequence, sequence.taken_up))

    def _leave(self, sequence: Sequence) -> None:
        self._count(sequence)
        sequence.running = False
        del self._running[sequence]
        self._kv = max(0.0, self._kv - sequence.context) if self._running else 0.0

    def _count(self, sequence: Sequence) -> None:
        gained = self._work - sequence.begun
        sequence.sampled, sequence.begun = sequence.sampled + gained, self._work
        self.sampled += gained

    def _preempt(self) -> None:
        newest = next(reversed(self._running))
        self._leave(newest)
        self._waiting.appendleft(newest)

    def _forget_void(self) -> None:
        while self._ends:
            _, _, sequence, taken_up = self._ends[0]
            if sequence.running and sequence.taken_up == taken_up:
                return
            heapq.heappop(self._ends)
