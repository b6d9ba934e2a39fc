"""How long a simulated engine takes: the cost model that policies ask, and prefill, which an interrupted generation
pays again."""

from typing import Self

from pydantic import Field, model_validator

from ...schemas.config import Section
from ...schemas.cost_model import COEFFICIENTS, CostModel

LONGEST_S, SHORTEST_S = 60, 1e-9
"""Of one step, or of one token."""


class EngineCosts(Section):
    """`simulate.engine`: the coefficients of `schemas/cost_model.py`, by default those of a model of 7 billion weights
    on one GPU. `psrl calibrate` fits one's own."""

    other_threshold: float = Field(default=0.0064, ge=0, le=LONGEST_S)
    other_latency_b: float = Field(default=0.0027, ge=-LONGEST_S, le=LONGEST_S)
    other_latency_k: float = Field(default=0.0001231, ge=0, le=LONGEST_S)
    attn_latency_b: float = Field(default=0.0028, ge=0, le=LONGEST_S)
    attn_latency_k: float = Field(default=3.35e-8, ge=0, le=LONGEST_S)
    prefill_s_per_token: float = Field(default=3e-5, ge=0, le=LONGEST_S)
    """Of a prompt, and of what an interrupted generation has so far. The other sequences stand still meanwhile."""

    @model_validator(mode="after")
    def _a_step_takes_time(self) -> Self:
        took = self.model().latency(1, 0)
        if took < SHORTEST_S:
            raise ValueError(f"a step of one request would take {took:g} s; allowed: {SHORTEST_S:g} or more")
        return self

    def model(self, speed: float = 1.0) -> CostModel:
        """Of an instance that is so many times as fast."""
        return CostModel(**{name: getattr(self, name) for name in COEFFICIENTS}).at_speed(speed)
