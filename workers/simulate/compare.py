"""Several scenarios, one after the other: what each gave, and how many times as fast as the first. Called by the
CLI."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .result import Result
from .run import simulate
from .scenario import Scenario
from .timeline import Timeline


@dataclass(frozen=True)
class Compared:
    scenario: Scenario
    result: Result
    timeline: Timeline
    times_first: float
    """Steps per hour, as a multiple of the first one's."""

    def as_data(self) -> dict[str, Any]:
        return self.result.model_dump() | {"times_first": self.times_first}


def compare(scenarios: Mapping[str, Scenario]) -> list[Compared]:
    done: list[Compared] = []
    for name, scenario in scenarios.items():
        simulated = simulate(name, scenario)
        result = simulated.result
        first = done[0].result if done else result
        done.append(Compared(scenario, result, simulated.timeline, result.steps_per_hour / first.steps_per_hour))
    return done
