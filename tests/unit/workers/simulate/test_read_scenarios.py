"""From files and overrides to what is compared."""

from pathlib import Path

import pytest

from psrl.schemas.errors import ConfigError
from psrl.workers.simulate.read import read

EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "simulator").glob("*.yaml"))
FILE = """
psrl: {staleness: 1, staleness_buffer_entries: 8}
simulate:
  lengths: {kind: uniform, longest: 100}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(FILE)
    return path


def test_without_variants_there_is_the_file_as_it_is(file: Path) -> None:
    comparison = read(file, ["simulate.steps=7"], [])
    assert list(comparison.scenarios) == ["as given"]
    assert comparison.scenarios["as given"].simulate.steps == 7


def test_the_variants_of_a_file_and_those_of_the_command_are_compared(file: Path) -> None:
    file.write_text(FILE + "variants: {still: [psrl.staleness=0], eta 3: [psrl.staleness=3]}\n")
    comparison = read(file, ["psrl.staleness=2"], ["psrl.rollout_n=2 simulate.seed=4"])
    found = {name: (one.psrl.staleness, one.psrl.rollout_n) for name, one in comparison.scenarios.items()}
    assert found == {"still": (0, 1), "eta 3": (3, 1), "psrl.rollout_n=2 simulate.seed=4": (2, 2)}


def test_a_run_configuration_is_read_for_its_psrl_section(file: Path) -> None:
    file.write_text(FILE + "data: {train_files: [a.jsonl]}\n")
    assert read(file, [], []).unread == ("data",)


def test_a_file_stands_on_what_was_recorded(file: Path) -> None:
    recorded = {
        "psrl": {"rollout_n": 3},
        "simulate": {"train_s": 9.0, "lengths": {"kind": "recorded", "groups": [[1]]}},
    }
    only = read(None, ["simulate.steps=3"], [], recorded).scenarios["as given"]
    assert (only.psrl.rollout_n, only.simulate.train_s, only.simulate.steps) == (3, 9.0, 3)
    file.write_text("psrl: {staleness: 2}\n")
    both = read(file, [], [], recorded).scenarios["as given"]
    assert (both.psrl.rollout_n, both.psrl.staleness) == (3, 2)
    file.write_text(FILE)
    others = read(file, [], [], recorded).scenarios["as given"]
    assert (others.simulate.train_s, others.simulate.lengths.longest) == (9.0, 100)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: str(file.stem))
def test_every_example_can_be_simulated(example: Path) -> None:
    assert len(read(example, [], []).scenarios) > 1


@pytest.mark.parametrize(
    ("text", "overrides", "told"),
    [
        (FILE + "variants: [1]\n", [], r"variants=\[1\]; allowed: names"),
        (FILE + "variants: {a: psrl.staleness=1}\n", [], "variants.a='psrl.staleness=1'; allowed: a list"),
        (FILE + "variants: {a: [staleness]}\n", [], "override 'staleness' is not of the form key=value"),
        (FILE + "variants: {a: [psrl.stalenes=1]}\n", [], "variant 'a': psrl: unknown key 'stalenes'"),
        (FILE + "simulation: {}\n", [], "unknown section 'simulation'"),
        ("psrl: {staleness: 1}\n", [], "simulate is required"),
        (FILE, ["simulate.steps=0"], "^simulate.steps=0: input should be greater than or equal to 1"),
        (
            FILE,
            ["simulate.lengths.shortest=-1"],
            "^simulate.lengths.shortest=-1: input should be greater than or equal",
        ),
        (FILE, ["simulate.lengths.median=1"], "^simulate.lengths: unknown key 'median'; known here: kind, longest"),
        (FILE, ["simulate.lengths.kind=normal"], "^simulate.lengths.kind='normal': input should be one of 'uniform', "),
        (FILE, ["simulate.lengths=3"], "^simulate.lengths=3: input should be a section"),
        ("simulate: {lengths: {longest: 3}}\n", [], "^simulate.lengths.kind is required"),
        (
            "simulate: {lengths: {kind: recorded, groups: []}}\n",
            [],
            r"^simulate.lengths.groups=\[\]: input should have at least 1 item",
        ),
    ],
)
def test_bad_input_is_refused_by_name(file: Path, text: str, overrides: list[str], told: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read(file, overrides, [])


def test_a_fault_of_one_of_several_says_whose_it_is(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"^variant 'psrl.staleness=-1': psrl.staleness=-1: input"):
        read(file, [], ["psrl.staleness=-1"])


def test_further_variants_change_something(file: Path) -> None:
    with pytest.raises(ConfigError, match="--with is empty; allowed: KEY=VALUE"):
        read(file, [], [" "])
    with pytest.raises(ConfigError, match="cannot be read: No closing quotation"):
        read(file, [], ["psrl.staleness='1"])


def test_a_value_with_spaces_is_quoted_as_in_a_shell(file: Path) -> None:
    text = "simulate.lengths='{kind: uniform, longest: 7}' psrl.staleness=2"
    changed = read(file, [], [text]).scenarios[text]
    assert (changed.simulate.lengths.longest, changed.psrl.staleness) == (7, 2)


def test_a_list_in_place_of_a_recorded_section_is_refused() -> None:
    recorded = {"psrl": {"deployment": {"n_rollout_instances": 1}}, "simulate": {}}
    with pytest.raises(ConfigError, match="does not fit what the run has recorded: Cannot merge"):
        read(None, ["psrl.deployment=[1]"], [], recorded)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "simulate.steps=1000000000",
            "^simulate.steps=1000000000 with 8 groups of 1 per buffer are 8000000000 answers",
        ),
        ("psrl.rollout_n=100000000", "are 80000000000 answers; allowed: up to 20000000"),
        (
            "psrl.deployment.n_rollout_instances=5000",
            "^psrl.deployment.n_rollout_instances=5000 is more than are simul",
        ),
        ("simulate.speeds=[1e-300]", r"^simulate.speeds=\[1e-300\]; allowed: numbers from 0.001 to 1000 each"),
        ("simulate.speeds=[1e300]", "allowed: numbers from 0.001 to 1000 each"),
        ("simulate.engine.prefill_s_per_token=1e300", "input should be less than or equal to 60"),
        ("simulate.train_s_per_token=1e300", "input should be less than or equal to 60"),
        (
            "simulate.engine={other_threshold: 0, other_latency_b: 1e-300, attn_latency_b: 0, other_latency_k: 0}",
            "1e-09",
        ),
    ],
)
def test_what_would_not_end_is_refused(file: Path, override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read(file, [override], [])


def test_a_cost_model_that_is_not_there_is_found_before_anything_is_simulated(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"^variant '.*': psrl.*cost_model_path=none.json cannot be read"):
        read(file, [], ["psrl.rollout_coordination.routing_strategy.cost_model_path=none.json"])
