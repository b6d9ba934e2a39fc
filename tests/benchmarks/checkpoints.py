"""`python -m tests.benchmarks.checkpoints [HIDDEN]`: what a checkpoint costs the next step, and a recovery the run.

Steps of one run in turn without a checkpoint, with one that is waited for, and with one that is written beside the next
step, so that whatever else the machine does falls on all three. Then a new trainer that rebuilds the last version.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from psrl.activities.store.connections import sync_store
from psrl.schemas.ids import RunId
from psrl.schemas.stack import Stack
from psrl.workers.trainer.backends import backends
from psrl.workers.trainer.main import prepare_torch
from psrl.workers.trainer.opening import trainer_stages
from psrl.workers.trainer.stages import Stages
from psrl.workers.trainer.world import World
from tests.support.postgres import running_postgres
from tests.support.tiny_model import make_tiny_model
from tests.support.training import fill_run, run_values, synthetic_batch

KINDS = ("none", "waited for", "beside")
STEPS = 13


def measure(stages: Stages, run: RunId) -> dict[str, tuple[float, float]]:
    """By kind, medians in seconds: of the checkpoint's call, and of that with the step that follows it."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    stages.open(run)
    stages.publish(run, 0)
    for buffer in range(1, STEPS):
        kind = KINDS[buffer % len(KINDS)]
        began = time.perf_counter()
        if kind != "none":
            stages.checkpoint(run, buffer - 1, wait=kind == "waited for")
        called = time.perf_counter()
        stages.publish(run, buffer)
        found[kind].append((called - began, time.perf_counter() - began))
        if kind == "beside":  # The rest of its write must not fall on the next kind.
            stages.checkpoint(run, buffer - 1, wait=True)
    stages.checkpoint(run, STEPS - 2, wait=True)
    stages.close(run)
    return {
        kind: (statistics.median(c for c, _ in pairs), statistics.median(t for _, t in pairs))
        for kind, pairs in found.items()
    }


def main(hidden: int) -> None:
    device = prepare_torch()
    with (
        running_postgres() as postgres,
        postgres.database() as url,
        tempfile.TemporaryDirectory(prefix="psrl-checkpoints-") as name,
    ):
        home, store = Path(name), sync_store(url)
        model = make_tiny_model(home / "model", hidden=hidden)
        values = run_values(model={"path": str(model)})
        stack = Stack(
            home=home,
            temporal_address="",
            postgres_url="",
            coordinator_address="",
            weights_dir=home / "weights",
            checkpoints_dir=home / "checkpoints",
            instances=(),
        )
        stages = trainer_stages(stack, store, backends(World(), device))
        run = RunId("measured")
        fill_run(store, run, values, [synthetic_batch(4, 4, seed=seed) for seed in range(STEPS)])
        results = measure(stages, run)
        folder = max((home / "checkpoints" / run).iterdir())
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{device}, {torch.get_num_threads()} thread(s); checkpoint {size / 1e6:.0f} MB; {STEPS // 3} steps each")
        alone = results["none"][1]
        for kind, (call, step) in results.items():
            print(
                f"checkpoint {kind:>10}: stage held {call:.3f} s, with the next step {step:.3f} s = {step / alone:.2f}"
            )
        began = time.perf_counter()
        again = trainer_stages(stack, store, backends(World(), device))
        again.publish(run, STEPS - 1)
        print(f"a new trainer is at version {STEPS}, one step replayed: {time.perf_counter() - began:.3f} s")
        again.close(run)
        store.dispose()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 512)
