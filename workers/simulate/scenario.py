"""What is simulated: the `psrl` section of a run's configuration as it is, beside it what a run finds out by itself:
lengths, what engines and trainer cost, how long a sync takes. Read from a file by `read.py`."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from ...schemas.config import PsrlSection, RoutingMethod, Section
from ...schemas.config.agentic import AgentLoop
from ...schemas.config.sync_and_mig import LoadIndicator, SyncMethod
from ...schemas.cost_model import CostModel, layout, read_cost_model
from .costs import LONGEST_S, EngineCosts
from .lengths import Lengths

MOST_ANSWERS = 20_000_000
"""Of one simulated run: an hour and more."""
MOST_INSTANCES = 1_000
SLOWEST, FASTEST = 0.001, 1_000
"""Times further apart would be no times any more: adding the shortest to the longest would change nothing."""


class Costs(Section):
    """`simulate.*`."""

    lengths: Lengths
    prompt_tokens: int = Field(default=512, ge=1)
    engine: EngineCosts = EngineCosts()
    kv_capacity_tokens: int = Field(default=0, ge=0)
    """Of each instance. 0: its cache is never full."""
    speeds: tuple[float, ...] = ()
    """Of each instance, as a factor: 0.5 takes twice as long. Default: all 1."""
    sync_s: float = Field(default=1.0, ge=0)
    """An instance serves nobody for so long while it takes up a version."""
    train_s: float = Field(default=5.0, ge=0)
    """A step takes so long, from the batch to the published version, whatever its tokens."""
    train_s_per_token: float = Field(default=0.0, ge=0, le=LONGEST_S)
    """And so much for each token that is trained on."""
    score_s: float = Field(default=0.0, ge=0)
    """From the last token of a group to its reward."""
    filtered_share: float = Field(default=0.0, ge=0, le=0.95)
    """Share of complete groups that `psrl.group_post_process` drops."""
    steps: int = Field(default=100, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _every_answer_fits(self) -> Self:
        most = self.prompt_tokens + self.lengths.longest
        if 0 < self.kv_capacity_tokens <= most:
            raise ValueError(
                f"simulate.kv_capacity_tokens={self.kv_capacity_tokens} has no room for a prompt of "
                f"{self.prompt_tokens} and an answer of {self.lengths.longest} tokens; allowed: more than {most}"
            )
        return self

    @model_validator(mode="after")
    def _speeds_are_comparable(self) -> Self:
        if not all(SLOWEST <= speed <= FASTEST for speed in self.speeds):
            raise ValueError(
                f"simulate.speeds={list(self.speeds)}; allowed: numbers from {SLOWEST:g} to {FASTEST:g} each"
            )
        return self


class Scenario(Section):
    psrl: PsrlSection = PsrlSection()
    simulate: Costs

    @property
    def instances(self) -> int:
        return self.psrl.deployment.n_rollout_instances

    def speed(self, instance: int) -> float:
        return self.simulate.speeds[instance] if self.simulate.speeds else 1.0

    def known_cost(self, instance: int) -> CostModel | None:
        """What policies know of it: the run's own cost model, at the instance's speed."""
        path = self.psrl.rollout_coordination.routing_strategy.cost_model_path
        return read_cost_model(path, layout()).at_speed(self.speed(instance)) if path else None

    @model_validator(mode="after")
    def _ends_some_day(self) -> Self:
        psrl, steps = self.psrl, self.simulate.steps
        if (answers := steps * psrl.offered_groups * psrl.offered_trajectories) > MOST_ANSWERS:
            raise ValueError(
                f"simulate.steps={steps} with {psrl.offered_groups} groups of {psrl.offered_trajectories} per buffer "
                f"are {answers} answers; allowed: up to {MOST_ANSWERS}"
            )
        if self.instances > MOST_INSTANCES:
            raise ValueError(
                f"psrl.deployment.n_rollout_instances={self.instances} is more than are simulated; "
                f"allowed: 1 to {MOST_INSTANCES}"
            )
        return self

    @model_validator(mode="after")
    def _knows_what_it_costs(self) -> Self:
        """Before the first of several is simulated. Raises `ConfigError`."""
        self.known_cost(0)
        return self

    @model_validator(mode="after")
    def _one_speed_each(self) -> Self:
        given = len(self.simulate.speeds)
        if given not in (0, self.instances):
            raise ValueError(
                f"simulate.speeds has {given} numbers for psrl.deployment.n_rollout_instances={self.instances}; "
                f"allowed: {self.instances}, or none"
            )
        return self

    @model_validator(mode="after")
    def _kv_indicators_have_a_capacity(self) -> Self:
        strategy = self.psrl.rollout_coordination.sync_and_mig_strategy
        asked: list[StrEnum] = [strategy.sync.indicator] if strategy.method is SyncMethod.STATUS_BASED else []
        if strategy.mig.enable:
            asked += [strategy.mig.indicator, strategy.mig.stop_indicator]
        if LoadIndicator.KV_CACHE in asked and not self.simulate.kv_capacity_tokens:
            raise ValueError(
                "simulate.kv_capacity_tokens=0 with an indicator kv_cache, which would always be 0; allowed: as many "
                "tokens as the KV cache of an instance holds"
            )
        return self

    @model_validator(mode="after")
    def _only_what_is_simulated(self) -> Self:
        """A key that would change the outcome and is not modelled is refused: an answer without it would be wrong."""
        loop = self.psrl.agentic_rl.agent_loop
        if loop is not AgentLoop.GENERATE_ONLY:
            raise ValueError(f"psrl.agentic_rl.agent_loop={loop} is not simulated; allowed: generate_only")
        if self.psrl.rollout_coordination.session_strategy.thunder_agent.enable:
            raise ValueError(
                "psrl.rollout_coordination.session_strategy.thunder_agent.enable=true is not simulated; allowed: false"
            )
        routing = self.psrl.rollout_coordination.routing_strategy.method
        if routing.by_prefix:
            raise ValueError(
                f"psrl.rollout_coordination.routing_strategy.method={routing} is not simulated: simulated engines have "
                f"no prefix cache; allowed: {', '.join(method for method in RoutingMethod if not method.by_prefix)}"
            )
        if self.psrl.group_post_process.enable is not (self.simulate.filtered_share > 0):
            raise ValueError(
                f"psrl.group_post_process.enable={str(self.psrl.group_post_process.enable).lower()} with "
                f"simulate.filtered_share={self.simulate.filtered_share}: what a filter drops depends on rewards, "
                "which are not simulated; allowed: both, with the share that it drops, or neither"
            )
        return self
