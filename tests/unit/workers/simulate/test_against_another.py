"""This simulator beside another one, of which the figures are known: eight instances of eight slots, 64 groups a batch,
training short against generation, lengths evenly spread."""

from pathlib import Path

import pytest

from psrl.workers.simulate.compare import compare
from psrl.workers.simulate.read import read

UNIFORM = Path(__file__).parents[4] / "examples" / "simulator" / "uniform.yaml"
KNOWN = {"eta 1": 1.56, "eta 2": 1.83}
"""Times synchronous."""


def test_what_asynchrony_gives_is_within_a_tenth_of_what_another_simulator_found() -> None:
    scenarios = read(UNIFORM, ["simulate.steps=25"], []).scenarios
    compared = compare({name: scenarios[name] for name in ("synchronous", *KNOWN)})
    found = {one.result.name: one.times_first for one in compared[1:]}
    assert found == pytest.approx(KNOWN, rel=0.1)
    for one in compared:
        assert one.result.groups_dropped == 0
        assert max(one.result.staleness) <= one.scenario.psrl.staleness
