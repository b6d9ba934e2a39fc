"""The quick start as a person runs it: real vLLM, real trainer, every part a process of its own, only commands."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from examples.arithmetic.demo_model import Recipe, make_demo_model
from examples.arithmetic.generate import generate
from psrl.schemas.stack import load_stack
from psrl.workers.stack.orphans import stack_processes
from psrl.workers.stack.supervision import socket_path
from psrl.workers.stack.up import down
from tests.support.commands import psrl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

STEPS = 40


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One stack for all runs, as people have it."""
    place = tmp_path_factory.mktemp("quickstart") / "home"
    shared_memory = set(os.listdir("/dev/shm"))
    psrl(place, "up", "--instances", "2")
    try:
        yield place
        assert "stopped in" in psrl(place, "down")
        assert stack_processes(place) == []
        assert not socket_path(place).exists()
        assert set(os.listdir("/dev/shm")) <= shared_memory, "shared memory of a process that is gone"
    finally:
        down(place, lambda line: None)


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the Makefile prepares, in another place."""
    folder = tmp_path_factory.mktemp("arithmetic")
    make_demo_model(folder / "model", Recipe(), say=lambda line: None)
    train, validation = generate(folder, digits=1, train=1024, validation=20, seed=0)
    return [f"model.path={folder / 'model'}", f"data.train_files=[{train}]", f"data.val_files=[{validation}]"]


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)]
)
def test_the_quick_start_learns_while_generation_and_training_overlap(
    home: Path, overrides: list[str], seed: int
) -> None:
    run, eta = f"e2e-{seed}", 1
    length = f"trainer.total_training_steps={STEPS}"
    quickstart = "examples/arithmetic/quickstart.yaml"
    told = psrl(home, "train", quickstart, "--run", run, length, f"trainer.seed={seed}", *overrides)
    assert f"{run} done" in told

    report = json.loads(psrl(home, "report", run, "--json"))
    assert (report["phase"], report["steps"]) == ("done", STEPS)
    assert report["reward_last"] - report["reward_first"] >= 0.30, report
    assert report["validation_after"] > report["validation_before"], report
    ages = {int(age) for age, groups in report["staleness_histogram"].items() if groups}
    assert ages <= set(range(eta + 1)), report
    assert max(ages) > 0, "generation never ran ahead of training"
    assert report["overlap_share"] > 0
    assert report["untrainable_tokens"] == 0

    metrics = rows(home, "select metrics from step_metrics where run_id = %(run)s order by buffer", run)
    first = metrics[0][0]["log_probs"]
    assert first["gap_max_abs"] < 1e-4, "under the same weights engine and trainer agree"
    for (step,) in metrics:
        assert step["log_probs"]["engine_gap_mean_abs"] < 1e-5, step["log_probs"]  # field report 42
    assert f"run {run} (done): every promise holds" in psrl(home, "audit", run)


def rows(home: Path, query: str, run: str) -> list[tuple[Any, ...]]:
    url = load_stack(home).postgres_url.replace("+psycopg", "")
    with psycopg.connect(url) as connection:
        return connection.execute(query, {"run": run}).fetchall()  # type: ignore[call-overload,no-any-return]
