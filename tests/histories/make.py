"""`python -m tests.histories.make`: record the histories that `tests/workflow/test_replay.py` replays.

One file per workflow type, of a small real run. Record anew only when a change of the workflows is meant to break runs
that are in progress; otherwise use `workflow.patched`.
"""

import asyncio
import tempfile
from pathlib import Path

from temporalio.client import Client, WorkflowHistory

from psrl.activities.store.connections import async_store
from psrl.schemas.ids import InstanceId
from psrl.schemas.stack import Stack
from tests.support.histories import FOLDER, local_activities, replay, write
from tests.support.postgres import running_postgres
from tests.support.scripted_engine import Script
from tests.support.small_stack import small_stack
from tests.support.temporal import TemporalServer, running_temporal
from tests.support.tiny_model import make_tiny_model

EXECUTIONS = 10
"""Three of the run, one instance, three steps, two rounds of validation, and groups."""


async def record(temporal: TemporalServer, postgres_url: str, home: Path) -> dict[str, list[WorkflowHistory]]:
    client: Client = await temporal.connect()
    stack = Stack(
        home=home,
        temporal_address=temporal.address,
        postgres_url=postgres_url,
        coordinator_address="",
        weights_dir=home / "weights",
        checkpoints_dir=home / "checkpoints",
        instances=(InstanceId("rollout-0"),),
    )
    for folder in (stack.weights_dir, stack.checkpoints_dir):
        folder.mkdir()
    store = async_store(postgres_url)
    model = make_tiny_model(home / "model")
    script = Script(token_s=0.05)
    async with small_stack(client, stack, store, model, script=script, instances=1) as small:
        config = small.config(psrl={"staleness": 2, "rollout_n": 2})
        config["data"] |= {"val_files": config["data"]["train_files"], "val_max_samples": 2}
        await small.run(config)
        histories = await small.histories(EXECUTIONS)
    await store.dispose()
    return histories


def most_telling(kind: str, found: list[WorkflowHistory]) -> WorkflowHistory:
    """The run's first execution, which admits and starts; of the others the longest."""
    if kind == "TrainingRun":
        return min(found, key=lambda history: history.events[0].event_time.ToNanoseconds())
    return max(found, key=lambda history: (local_activities(history), len(history.events)))


def main() -> None:
    with (
        running_postgres() as postgres,
        running_temporal() as temporal,
        postgres.database() as postgres_url,
        tempfile.TemporaryDirectory(prefix="psrl-histories-") as folder,
    ):
        histories = asyncio.run(record(temporal, postgres_url, Path(folder)))
    for kind, found in histories.items():
        chosen = most_telling(kind, found)
        asyncio.run(replay(chosen))
        write(chosen, FOLDER / f"{kind}.json")
        print(f"{kind}: {len(chosen.events)} events")


if __name__ == "__main__":
    main()
