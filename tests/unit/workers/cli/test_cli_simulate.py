"""`psrl simulate` at the terminal."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psrl.workers.cli.commands import app

FILE = """
psrl: {staleness_buffer_entries: 4}
simulate:
  lengths: {kind: uniform, shortest: 20, longest: 200}
  steps: 20
variants: {still: [psrl.staleness=0], ahead: [psrl.staleness=2]}
"""
RUN = """
model: {path: none}
data: {train_files: [t]}
reward: {function: "m:f"}
psrl: {rollout_n: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(FILE)
    return str(path)


def test_configurations_are_compared_in_a_table(file: str) -> None:
    result = CliRunner().invoke(app, ["simulate", file, "simulate.steps=10"])
    assert result.exit_code == 0, result.output
    heading, still, ahead = result.stdout.splitlines()
    assert heading.split()[:3] == ["steps/h", "times", "tokens/s"]
    assert still.split()[0] == "still"
    assert " 1.00 " in still
    assert float(ahead.split()[2]) > 1


def test_a_page_has_a_timeline_of_each(file: str, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "out.html"
    result = CliRunner().invoke(app, ["simulate", file, "--json", "--out", str(page)])
    assert result.exit_code == 0, result.output
    assert [one["name"] for one in json.loads(result.stdout)] == ["still", "ahead"]
    text = page.read_text()
    assert "still: steps 4 to 15" in text
    assert "ahead: steps 4 to 15" in text
    assert "rollout-0" in text


def test_nothing_to_simulate_is_told_of() -> None:
    result = CliRunner().invoke(app, ["simulate"])
    assert (result.exit_code, result.stderr) == (
        1,
        "error: nothing to simulate; allowed: a scenario file, or --run with the name of a run\n",
    )


def test_a_file_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "none.yaml")])
    assert result.exit_code == 1
    assert "none.yaml" in result.stderr


@pytest.mark.parametrize("command", ["simulate", "calibrate"])
def test_an_out_that_cannot_be_written_is_refused_before_the_work(command: str, file: str, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(RUN)
    config = file if command == "simulate" else str(run)
    for out, told in ((tmp_path, "is a directory; allowed: a file"), (run / "x" / "o", "cannot be written")):
        result = CliRunner().invoke(app, [command, config, "--out", str(out)])
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"error: --out {out} {told}")
    assert not list(tmp_path.glob("*.new"))


def test_a_cost_model_is_not_written_into_another_file(tmp_path: Path) -> None:
    """Nor is the engine measured first."""
    run = tmp_path / "run.yaml"
    run.write_text(RUN)
    result = CliRunner().invoke(app, ["calibrate", str(run), "--out", str(run)])
    assert result.exit_code == 1
    assert f"--out {run} exists and is no JSON" in result.stderr
