"""The trainer's activities: they beat while they work, fail in the form that crosses process borders, and are served
by the trainer's process."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from psrl.activities import heartbeat, signatures
from psrl.activities.store.connections import sync_store
from psrl.schemas.errors import InstanceBusy, StoreRevisionMismatch
from psrl.schemas.ids import TRAINER_QUEUE, RunId
from psrl.schemas.messages.training import OpenTrainerRequest, PublishResult, StepRequest
from psrl.schemas.stack import Stack
from psrl.workers.trainer.host import TrainerHost
from psrl.workers.trainer.main import main
from tests.support.tiny_model import make_tiny_model
from tests.support.training import fill_run, run_values, synthetic_batch

pytestmark = pytest.mark.integration

RESULT = PublishResult(version=1, bytes=0, seconds=0.0)
REQUEST = StepRequest(run_id=RunId("quick"), buffer=0)


class ScriptedStages:
    """Stands in for the stages: `publish` works until it is let go, `update` is refused."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = 0
        self.most_running = 0

    def publish(self, run_id: str, buffer: int) -> PublishResult:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        assert self.go.wait(30)
        self.running -= 1
        return RESULT

    def shutdown(self) -> None:
        pass

    def update(self, run_id: str, buffer: int) -> None:
        raise InstanceBusy("the trainer serves another run")


async def test_an_activity_beats_while_its_stage_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.01)
    stages = ScriptedStages()
    host = TrainerHost(stages)  # type: ignore[arg-type]
    beats, enough = 0, asyncio.Event()

    def beat(*_: object) -> None:
        nonlocal beats
        beats += 1
        if beats == 5:
            enough.set()

    environment = ActivityEnvironment()
    environment.on_heartbeat = beat
    work = asyncio.create_task(environment.run(host.publish, REQUEST))
    await asyncio.wait_for(enough.wait(), 60)
    assert not work.done()
    stages.go.set()
    assert await asyncio.wait_for(work, 60) == RESULT
    host.shutdown()


async def test_stages_run_one_at_a_time_also_after_a_cancelled_attempt() -> None:
    stages = ScriptedStages()
    host = TrainerHost(stages)  # type: ignore[arg-type]
    first, second = (asyncio.create_task(ActivityEnvironment().run(host.publish, REQUEST)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    stages.go.set()
    assert await asyncio.wait_for(second, 60) == RESULT
    assert stages.most_running == 1
    host.shutdown()


async def test_a_refusal_of_ours_becomes_an_application_error_that_is_not_repeated() -> None:
    host = TrainerHost(ScriptedStages())  # type: ignore[arg-type]
    with pytest.raises(ApplicationError, match="another run") as caught:
        await ActivityEnvironment().run(host.update, REQUEST)
    assert caught.value.type == "InstanceBusy"
    assert caught.value.non_retryable
    host.shutdown()


def test_the_host_serves_every_activity_of_the_trainer_under_its_signature() -> None:
    host = TrainerHost(ScriptedStages())  # type: ignore[arg-type]
    served = {item.__temporal_activity_definition.name for item in host.activities}
    wanted = (
        signatures.open_trainer,
        signatures.compute_log_probs,
        signatures.compute_advantages,
        signatures.update,
        signatures.publish,
        signatures.checkpoint,
        signatures.close_trainer,
    )
    assert served == {item.__name__ for item in wanted}


async def test_the_trainer_process_serves_a_run_and_stops_on_request(
    stack: Stack, temporal_client: Client, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model")
    store = sync_store(stack.postgres_url)
    fill_run(store, "quick", run_values(model={"path": str(model)}), [synthetic_batch(4, 4)])
    store.dispose()
    stop = asyncio.Event()
    process = asyncio.create_task(main(stack, stop))
    for number, (stage, request) in enumerate(
        [
            (signatures.open_trainer, OpenTrainerRequest(run_id=RunId("quick"))),
            (signatures.publish, REQUEST),
            (signatures.checkpoint, REQUEST),
            (signatures.close_trainer, OpenTrainerRequest(run_id=RunId("quick"))),
        ]
    ):
        result = await temporal_client.execute_activity(  # type: ignore[call-overload]
            stage,
            request,
            id=f"stage-{number}",
            task_queue=TRAINER_QUEUE,
            start_to_close_timeout=timedelta(seconds=60),
        )
        if stage is signatures.publish:
            assert result.version == 1
    assert (stack.checkpoints_dir / "quick" / "step_000001" / "COMMITTED").exists()
    stop.set()
    await asyncio.wait_for(process, 30)


async def test_the_trainer_process_refuses_a_store_of_another_release(stack: Stack, temporal_client: Client) -> None:
    store = sync_store(stack.postgres_url)
    with store.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    store.dispose()
    with pytest.raises(StoreRevisionMismatch, match="revision 9999, this release needs"):
        await main(stack, asyncio.Event())
