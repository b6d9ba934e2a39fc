"""One simulated instance: an engine, what it serves, and what the coordinator has heard of it."""

from dataclasses import dataclass

from ...schemas.cost_model import CostModel
from ...schemas.ids import InstanceId, RunId
from ...schemas.messages.rollout import InstanceReport, InstanceState
from ..coordinator.policies.load import InstanceLoad, RequestLoad
from .engine import Engine

RUN = RunId("simulated")


@dataclass(eq=False)
class Instance:
    number: int
    name: InstanceId
    engine: Engine
    slots: int
    kv_capacity_tokens: int
    """0: not bounded."""
    cost: CostModel | None
    """What the coordinator knows of it; None where the run has no cost model."""
    by_request: bool
    """It reports the tokens of each request, which one policy asks for."""
    state: InstanceState = InstanceState.SERVING
    version: int = 0
    received: int = 0
    told_at: float | None = None
    """When it last reported; None: something has changed since."""
    plan: int = 0
    """Numbers the changes that it foresaw; only the newest comes to pass."""
    busy_s: float = 0.0
    """Of all its slots together."""
    counted_to: float = 0.0

    def count(self, now: float) -> None:
        """The slots that were taken until now, before that changes."""
        self.busy_s += self.engine.running * (now - self.counted_to)
        self.counted_to = now

    def load(self, now: float, pull_s: float) -> InstanceLoad:
        """As sync and migration policies see it."""
        answers, engine = self.engine.answers(now), self.engine
        return InstanceLoad(
            instance=self.name,
            version=self.version,
            serving=self.state is InstanceState.SERVING,
            slots=self.slots,
            running=engine.running,
            waiting=engine.waiting,
            throughput=engine.throughput,
            kv_usage=engine.kv_tokens(now) / self.kv_capacity_tokens if self.kv_capacity_tokens else 0.0,
            kv_capacity=self.kv_capacity_tokens,
            requests=[RequestLoad(answer.name, answer.prompt, int(answer.sampled)) for answer in answers],
            pull_s=pull_s,
            cost=self.cost,
        )

    def report(self, now: float) -> InstanceReport:
        kv, answers = self.engine.kv_tokens(now), self.engine.answers(now) if self.by_request else []
        return InstanceReport(
            instance=self.name,
            run_id=RUN,
            state=self.state,
            version=self.version,
            running=self.engine.running,
            waiting=self.engine.waiting,
            received=self.received,
            kv_cache_usage=kv / self.kv_capacity_tokens if self.kv_capacity_tokens else 0.0,
            kv_tokens=int(kv),
            kv_capacity_tokens=self.kv_capacity_tokens,
            throughput=self.engine.throughput,
            requests=tuple(answer.name for answer in answers),
            prompt_tokens=tuple(answer.prompt for answer in answers),
            generated_tokens=tuple(int(answer.sampled) for answer in answers),
            cost=self.cost,
            engine_waiting=min(self.engine.waiting, self.slots - self.engine.running),
            max_num_seqs=self.slots,
            tokens_total=int(self.engine.sampled),
        )
