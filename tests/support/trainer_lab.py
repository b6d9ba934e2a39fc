"""One store with filled runs, and as many lives of a trainer process as a test wants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import Engine, select

from psrl.schemas.ids import RunId
from psrl.schemas.stack import Stack
from psrl.schemas.tables import WeightVersion
from psrl.schemas.weights import WeightManifest
from psrl.workers.trainer.backends import backends
from psrl.workers.trainer.opening import trainer_stages
from psrl.workers.trainer.stages import Stages
from psrl.workers.trainer.world import World
from tests.support.training import fill_run, run_values, synthetic_batch

RUN = RunId("quick")
STEPS = 5
CPU = torch.device("cpu")


class Lab:
    """Fill a run, live, die, look at what was published."""

    def __init__(self, home: Path, engine: Engine, model: Path) -> None:
        self.engine = engine
        self.model = model
        self.stack = Stack(
            home=home,
            temporal_address="",
            postgres_url="",
            coordinator_address="",
            weights_dir=home / "weights",
            checkpoints_dir=home / "checkpoints",
            instances=(),
        )

    def fill(self, run: str = RUN, seeds: Sequence[int] = range(STEPS), **sections: dict[str, Any]) -> None:
        """One batch per seed."""
        actor = {"optim": {"lr": 0.01, "lr_warmup_steps": 3}, "grad_clip": 0.5, **sections.pop("actor", {})}
        values = run_values(model={"path": str(self.model)}, actor=actor, **sections)
        batches = [synthetic_batch(4, 4, seed=seed, missing_share=0.05) for seed in seeds]
        fill_run(self.engine, run, values, batches)

    def life(self) -> Stages:
        """A new trainer process: nothing in memory."""
        return trainer_stages(self.stack, self.engine, backends(World(), CPU))

    def manifest(self, version: int, run: str = RUN) -> WeightManifest:
        query = select(WeightVersion.manifest).where(WeightVersion.run_id == run, WeightVersion.version == version)
        with self.engine.connect() as connection:
            return WeightManifest.model_validate(connection.execute(query).scalar_one())

    def checksums(self, run: str = RUN) -> list[list[str]]:
        """Of every published version."""
        return [[shard.digest for shard in self.manifest(version, run).shards] for version in range(STEPS + 1)]

    def step_folder(self, version: int) -> Path:
        return self.stack.checkpoints_dir / RUN / f"step_{version:06d}"
