"""What all parts of one simulated run share."""

from dataclasses import dataclass, field

from ...workflows.ledger import Ledger
from .clock import Clock
from .scenario import Scenario
from .tally import Tally
from .timeline import Timeline


@dataclass(frozen=True)
class World:
    scenario: Scenario
    ledger: Ledger
    timeline: Timeline
    clock: Clock = field(default_factory=Clock)
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def of(cls, scenario: Scenario) -> "World":
        psrl = scenario.psrl
        ledger = Ledger(
            staleness=psrl.staleness, batch_groups=psrl.staleness_buffer_entries, offered_groups=psrl.offered_groups
        )
        return cls(scenario, ledger, Timeline.of_run(scenario.simulate.steps, scenario.instances))
