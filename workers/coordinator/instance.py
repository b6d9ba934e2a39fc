"""One instance in the coordinator's view: its newest report, and what was placed on it since.

`load` is what the instance reported (running + waiting) plus what was placed on it and not yet received: between two
reports the placements of this process are the only fresh fact. The same holds for its KV tokens.
"""

from collections import deque

from ...schemas.messages.rollout import InstanceReport, InstanceState
from .policies.routing.contract import Candidate
from .policies.routing.throughput_optimal_with_budget import expected
from .prefixes import Prefixes

SILENCE_S = 5.0
"""An instance that has not reported for so long is taken for gone."""
DECAY_S = 5.0
"""A placement not received by then was lost (a cancelled group, a crashed host) or is slow and soon reported."""


class Instance:
    def __init__(self, report: InstanceReport, now: float) -> None:
        self.report, self.seen_at = report, now
        self.prefixes = Prefixes()
        self._placed: deque[tuple[float, int]] = deque()
        """Placements not yet received, oldest first: when, and of how many KV tokens."""
        self._placed_tokens = 0
        self._candidate: Candidate | None = None
        self._budget = 0
        """What `_candidate` was made with."""

    @property
    def load(self) -> int:
        return self.report.running + self.report.waiting + len(self._placed)

    @property
    def next_change(self) -> float:
        """When time alone will have changed it, at the earliest."""
        return min(self.seen_at + SILENCE_S, self._placed[0][0] + DECAY_S if self._placed else float("inf"))

    def candidate(self, budget: int = 0) -> Candidate:
        """As policies see it. `budget`: responses count as whole numbers of so many tokens; 0: as they are."""
        if self._candidate is None or self._budget != budget:
            self._candidate, self._budget = self._seen(budget), budget
        return self._candidate

    def place(self, now: float, need: int) -> None:
        self._placed.append((now, need))
        self._placed_tokens += need
        self._candidate = None

    def update(self, report: InstanceReport, now: float) -> None:
        same_process = report.pid == self.report.pid
        if report.run_id != self.report.run_id:
            self._forget(len(self._placed))
        if not same_process or report.version != self.report.version or report.run_id != self.report.run_id:
            self.prefixes.clear()
        # A restarted host counts from zero; what waits in its task queue reaches the new process all the same.
        before = self.report.received if same_process else 0
        self._forget(min(max(0, report.received - before), len(self._placed)))
        self.report, self.seen_at, self._candidate = report, now, None

    def decay(self, now: float) -> None:
        while self._placed and now - self._placed[0][0] >= DECAY_S:
            self._forget(1)

    def _forget(self, oldest: int) -> None:
        for _ in range(oldest):
            self._placed_tokens -= self._placed.popleft()[1]
            self._candidate = None

    def _seen(self, budget: int) -> Candidate:
        report = self.report
        return Candidate(
            instance=report.instance,
            version=report.version,
            load=self.load,
            capacity=report.max_num_seqs,
            serving=report.state is InstanceState.SERVING,
            waiting=report.engine_waiting,
            kv_tokens=self._kv_tokens(budget) + self._placed_tokens,
            kv_capacity=report.kv_capacity_tokens,
            cost=report.cost,
        )

    def _kv_tokens(self, budget: int) -> int:
        if not budget or not self.report.requests:
            return self.report.kv_tokens
        lengths = zip(self.report.prompt_tokens, self.report.generated_tokens, strict=True)
        return sum(expected(prompt, sampled, budget) for prompt, sampled in lengths)
