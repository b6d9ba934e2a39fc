"""How many tokens each answer has: distributions, or what a run has recorded. Every choice is in the scenario file
under `simulate.lengths`.

Promise: lengths depend on the seed, the group and the trajectory, and on nothing that the simulated run does; so every
configuration that is compared answers the same prompts with the same numbers of tokens.
"""

import math
import random
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...schemas.config import Section

NORMAL = NormalDist()
TINY = 2.0**-53
"""A quantile of exactly 0 has no logarithm."""


class Uniform(Section):
    """Every number between two bounds is as likely."""

    kind: Literal["uniform"] = "uniform"
    shortest: int = Field(default=1, ge=1)
    longest: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> "Uniform":
        _refuse_unordered(self.shortest, self.longest)
        return self

    def at(self, quantile: float) -> int:
        return self.shortest + int(quantile * (self.longest - self.shortest + 1))


class Bimodal(Section):
    """Most are short, some are long; both vary by `spread` around their centre, evenly."""

    kind: Literal["bimodal"] = "bimodal"
    short: int = Field(ge=1)
    long: int = Field(ge=1)
    long_share: float = Field(gt=0, lt=1)
    spread: float = Field(default=0.2, ge=0, lt=1)
    """0.2: between 0.8 and 1.2 times the centre."""

    @model_validator(mode="after")
    def _ordered(self) -> "Bimodal":
        if self.long < self.short:
            raise ValueError(f"long={self.long} is below short={self.short}; allowed: that or more")
        return self

    @property
    def longest(self) -> int:
        return math.ceil(self.long * (1 + self.spread))

    def at(self, quantile: float) -> int:
        """Long ones at the upper end, so that a higher quantile is never shorter than a lower one of its kind."""
        border = 1 - self.long_share
        centre, within = (
            (self.short, quantile / border) if quantile < border else (self.long, (quantile - border) / self.long_share)
        )
        return max(1, round(centre * (1 + self.spread * (2 * within - 1))))


class Lognormal(Section):
    """A long tail, cut at the longest answer that the run allows."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(ge=1)
    sigma: float = Field(gt=0, le=5)
    longest: int = Field(ge=1)
    """`data.max_response_length`: an answer that would be longer ends here."""

    @model_validator(mode="after")
    def _ordered(self) -> "Lognormal":
        _refuse_unordered(math.ceil(self.median), self.longest)
        return self

    def at(self, quantile: float) -> int:
        drawn = self.median * math.exp(self.sigma * NORMAL.inv_cdf(max(quantile, TINY)))
        return min(self.longest, max(1, round(drawn)))


class PowerLaw(Section):
    """The heaviest tail: the share that is longer than x falls as x to the minus `exponent`."""

    kind: Literal["power_law"] = "power_law"
    shortest: int = Field(ge=1)
    exponent: float = Field(gt=0, le=10)
    longest: int = Field(ge=1)
    """As of `lognormal`."""

    @model_validator(mode="after")
    def _ordered(self) -> "PowerLaw":
        _refuse_unordered(self.shortest, self.longest)
        return self

    def at(self, quantile: float) -> int:
        drawn: float = self.shortest * (1 - quantile) ** (-1 / self.exponent)
        return min(self.longest, round(drawn))


class Recorded(Section):
    """What a run has answered, group by group; from the first again when more are asked for."""

    kind: Literal["recorded"] = "recorded"
    groups: tuple[tuple[int, ...], ...] = Field(min_length=1)
    """Of each group the sampled tokens of its complete trajectories."""

    @model_validator(mode="after")
    def _has_tokens(self) -> "Recorded":
        for number, group in enumerate(self.groups):
            if not group or min(group) < 1:
                raise ValueError(f"groups.{number}={list(group)}; allowed: at least one number, each at least 1")
        return self

    @property
    def longest(self) -> int:
        return max(map(max, self.groups))


Lengths = Annotated[Uniform | Bimodal | Lognormal | PowerLaw | Recorded, Field(discriminator="kind")]


def tokens_of(lengths: Uniform | Bimodal | Lognormal | PowerLaw | Recorded, seed: int, group: int, index: int) -> int:
    """Of one trajectory. Where a group was recorded with fewer trajectories, one of its own numbers is drawn."""
    chance = random.Random(f"{seed}/{group}/{index}").random()
    if not isinstance(lengths, Recorded):
        return lengths.at(chance)
    known = lengths.groups[group % len(lengths.groups)]
    return known[index if index < len(known) else int(chance * len(known))]


def _refuse_unordered(least: int, longest: int) -> None:
    if longest < least:
        raise ValueError(f"longest={longest} is below {least}; allowed: that or more")
