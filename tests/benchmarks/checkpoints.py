"""`python -m tests.benchmarks.checkpoints [HIDDEN]`: what a checkpoint costs the next step, and a recovery the run.

The same steps three times in one process, on one store: without checkpoints, with one after every step that is waited
for, and with one that is written beside the next step. Then a new trainer that rebuilds the last version.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from psrl.activities.store.engine import sync_engine
from psrl.schemas.ids import RunId
from psrl.schemas.stack import Stack
from psrl.workers.trainer.main import prepare_torch
from psrl.workers.trainer.stages import Stages
from psrl.workers.trainer.world import World
from tests.support.postgres import running_postgres
from tests.support.tiny_model import make_tiny_model
from tests.support.training import fill_run, run_values, synthetic_batch

STEPS = 6


def measure(stages: Stages, run: RunId, save: bool, wait: bool) -> list[float]:
    """Seconds of each step from its update to the begin of the next one, the first left out."""
    stages.open(run)
    seconds = []
    for buffer in range(STEPS):
        began = time.perf_counter()
        stages.publish(run, buffer)
        if save:
            stages.checkpoint(run, buffer, wait)
        seconds.append(time.perf_counter() - began)
    stages.close(run)
    return seconds[1:]


def main(hidden: int) -> None:
    device = prepare_torch()
    with (
        running_postgres() as postgres,
        postgres.database() as url,
        tempfile.TemporaryDirectory(prefix="psrl-checkpoints-") as name,
    ):
        home, store = Path(name), sync_engine(url)
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
        stages = Stages(stack, store, World(), device)
        results = {}
        for kind, save, wait in (("none", False, False), ("waited for", True, True), ("beside", True, False)):
            run = RunId(kind.replace(" ", "-"))
            fill_run(store, run, values, [synthetic_batch(4, 4, seed=seed) for seed in range(STEPS)])
            results[kind] = statistics.median(measure(stages, run, save, wait))
        folder = home / "checkpoints" / "beside" / f"step_{STEPS:06d}"
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{device}, {torch.get_num_threads()} thread(s); checkpoint {size / 1e6:.0f} MB; {STEPS - 1} steps each")
        for kind, seconds in results.items():
            print(f"checkpoint {kind:>10}: {seconds:.3f} s a step, {seconds / results['none'] - 1:+.0%}")
        began = time.perf_counter()
        again = Stages(stack, store, World(), device)
        again.publish(RunId("beside"), STEPS - 1)
        print(f"a new trainer is at version {STEPS}, one step replayed: {time.perf_counter() - began:.3f} s")
        again.close(RunId("beside"))
        store.dispose()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 512)
