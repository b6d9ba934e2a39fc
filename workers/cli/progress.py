"""What a run is doing, measured: from the run's own answers, the store and the coordinator."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError

from ...activities.store.connections import async_store
from ...schemas.errors import NotOurs, PsrlError
from ...schemas.messages.run import RunStatus, StepReport
from ...schemas.stack import Stack
from ...schemas.tables import StepMetric
from ..coordinator.client import CoordinatorClient
from .runs import ledger_of, status_of

WINDOW = 10
"""Steps over which idle share and reward are averaged."""
RATE_WINDOW_S = 20.0
"""Generation comes in bursts: between two looks there may be none."""
STORE_S = 5.0
"""A server that hangs holds a query forever."""


@dataclass
class View:
    """One look at the run; what could not be asked is as it was before."""

    status: RunStatus | None = None
    occupied: int = 0
    live: int = 0
    tokens_per_s: float | None = None
    fresh: list[StepReport] = field(default_factory=list)
    """Steps that finished since the last look."""
    recent: deque[StepReport] = field(default_factory=lambda: deque(maxlen=WINDOW))
    trouble: str = ""
    """Who did not answer."""

    @property
    def idle_share(self) -> float | None:
        waited = sum(step.waited_s for step in self.recent)
        busy = sum((step.published_at - step.train_started_at).total_seconds() for step in self.recent)
        return waited / (waited + busy) if waited + busy > 0 else None


class Rate:
    """What a counter rises by in a second, over the last `RATE_WINDOW_S`. A counter that fell has begun anew."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, total: int) -> float | None:
        """`None` until two values are known."""
        if self._seen and total < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, total))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_WINDOW_S:
            self._seen.popleft()
        since, before = self._seen[0]
        return (total - before) / (now - since) if now > since else None


class Observer:
    """Polls one run. A part that does not answer is named in the view, not an error: the run does
    not need us."""

    def __init__(self, client: Client, stack: Stack, run_id: str) -> None:
        self._handle = client.get_workflow_handle(run_id)
        self._run_id = run_id
        self._store: AsyncEngine = async_store(stack.postgres_url, pool_size=1, store_id=stack.store_id)
        self._coordinator = CoordinatorClient(stack.coordinator_address, stack.stack_id)
        self._next_buffer = 0
        self._tokens = Rate()
        self._view = View()

    async def look(self) -> View:
        view = self._view
        view.fresh, silent = [], []
        try:
            view.status = await status_of(self._handle)
            buffers = await ledger_of(self._handle)
            view.occupied = sum(int(buffer["occupied"]) for buffer in buffers)
            view.live = view.occupied + sum(int(buffer["reserved"]) for buffer in buffers)
        except RPCError:
            silent.append("Temporal")
        except NotOurs:
            silent.append("Temporal (another stack has its address)")
        except PsrlError:
            silent.append("an orchestrator")
        try:
            async with asyncio.timeout(STORE_S):
                view.fresh = await self._new_steps()
        except (SQLAlchemyError, TimeoutError):
            silent.append("the store")
        view.recent.extend(view.fresh)
        try:
            await self._measure_tokens()
        except PsrlError:
            silent.append("the coordinator")
        view.trouble = _trouble(silent)
        return view

    async def close(self) -> None:
        await self._coordinator.close()
        await self._store.dispose()

    async def _new_steps(self) -> list[StepReport]:
        query = (
            select(StepMetric.metrics)
            .where(StepMetric.run_id == self._run_id, StepMetric.buffer >= self._next_buffer)
            .order_by(StepMetric.buffer)
        )
        async with self._store.connect() as connection:
            steps = [StepReport.model_validate(metrics) for metrics in await connection.scalars(query)]
        if steps:
            self._next_buffer = steps[-1].buffer + 1
        return steps

    async def _measure_tokens(self) -> None:
        """Of the hosts' own counters."""
        fleet = await self._coordinator.fleet()
        total = sum(item.report.tokens_total for item in fleet.instances if item.report.run_id == self._run_id)
        self._view.tokens_per_s = self._tokens.add(time.monotonic(), total)


def _trouble(silent: Sequence[str]) -> str:
    """Who did not answer, and that waiting is right: the run is safe in what is away."""
    if not silent:
        return ""
    names = " and ".join(filter(None, (", ".join(silent[:-1]), silent[-1])))
    return f"no answer from {names}; waiting, `psrl status` shows the parts, `psrl up` starts them"


def step_line(step: StepReport, view: View) -> str:
    """One finished step, for a terminal that cannot be redrawn and for logs."""
    total = view.status.total_steps if view.status else 0
    groups = step.batch.staleness
    stale = sum(age * count for age, count in groups.items()) / max(1, sum(groups.values()))
    return "  ".join(
        [
            f"step {step.buffer + 1}/{total or '?'}",
            f"reward {step.batch.reward_mean:.3f}",
            f"staleness {stale:.2f}",
            f"buffers {view.occupied}/{view.live}",
            f"tokens/s {_whole(view.tokens_per_s)}",
            f"trainer idle {_share(view.idle_share)}",
            f"gap {_small(step.log_probs.engine_gap_mean_abs)}",
        ]
    )


def _small(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def now_line(view: View) -> str:
    """Where the run is between two steps."""
    status = view.status
    if status is None:
        return view.trouble or "waiting for the run's first answer"
    validation = f"  validation {status.validation_accuracy:.3f}" if status.validation_accuracy is not None else ""
    waiting = f"  waiting for {status.waiting_for}" if status.waiting_for else ""
    trouble = f"  [{view.trouble}]" if view.trouble else ""
    return f"{status.phase}{validation}{waiting}{trouble}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
