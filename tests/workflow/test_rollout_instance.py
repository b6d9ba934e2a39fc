"""One engine's life on behalf of one run."""

import asyncio
from datetime import timedelta

from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, InstanceId, RunId, instance_workflow
from psrl.schemas.messages.rollout import EngineSpec, InstanceState
from psrl.schemas.messages.run import InstanceChanged, StartInstance
from psrl.workflows import settings
from psrl.workflows.rollout_instance import RolloutInstance
from tests.support.scripted_parts import ScriptedParts
from tests.support.signal_sink import SignalSink

NAME = InstanceId("rollout-0")


async def begin(client: Client, run_id: str) -> WorkflowHandle[RolloutInstance, str]:
    await client.start_workflow(SignalSink.run, id=run_id, task_queue=ORCHESTRATOR_QUEUE)
    spec = EngineSpec(
        run_id=RunId(run_id),
        model_path="m",
        dtype="float32",
        kv_cache_bytes=1,
        block_size=32,
        max_model_len=8,
        max_num_seqs=8,
    )
    start = StartInstance(
        run_workflow_id=run_id, instance=NAME, spec=spec, version=0, interrupt=True, start_timeout_s=60
    )
    return await client.start_workflow(
        RolloutInstance.run, start, id=instance_workflow(RunId(run_id), NAME), task_queue=ORCHESTRATOR_QUEUE
    )


async def serving(instance: WorkflowHandle[RolloutInstance, str], version: int) -> InstanceChanged:
    return await reaching(instance, InstanceState.SERVING, version)


async def reaching(
    instance: WorkflowHandle[RolloutInstance, str], state: InstanceState, version: int
) -> InstanceChanged:
    while True:
        status = await instance.query(RolloutInstance.status)
        if (status.state, status.version) == (state, version):
            return status
        await asyncio.sleep(0.05)


async def test_an_instance_serves_only_after_a_pull_and_follows_every_sync(client: Client, run_id: str) -> None:
    parts = ScriptedParts(instances=1)
    parts.published = {0, 1, 2}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await serving(instance, 0)
        await instance.signal(RolloutInstance.sync, 2)
        await serving(instance, 2)
        await instance.signal(RolloutInstance.sync, 1)
        await instance.signal(RolloutInstance.stop)
        assert await instance.result() == "stopped"
    assert parts.calls == ["start rollout-0", "release rollout-0"]


async def test_an_update_that_failed_is_repaired_by_a_restart_and_a_new_pull(client: Client, run_id: str) -> None:
    class OneBadPull(ScriptedParts):
        async def on_pull(self, instance: InstanceId, version: int) -> None:
            if self.calls.count("start rollout-0") == 1:
                raise ApplicationError("probe differs", type="WeightsRefused", non_retryable=True)

    parts = OneBadPull(instances=1)
    parts.published = {0}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await serving(instance, 0)
        await instance.signal(RolloutInstance.stop)
        await instance.result()
    assert parts.calls == ["start rollout-0", "start rollout-0", "release rollout-0"]


async def test_an_instance_that_keeps_failing_is_quarantined_and_tells_the_run_why(
    skipping: Client, environment: WorkflowEnvironment, run_id: str
) -> None:
    client = skipping

    class AlwaysBad(ScriptedParts):
        async def on_pull(self, instance: InstanceId, version: int) -> None:
            raise ApplicationError("probe differs", type="WeightsRefused", non_retryable=True)

    parts = AlwaysBad(instances=1)
    parts.published = {0}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        for _ in range(settings.RESTART_BUDGET + 1):
            await environment.sleep(timedelta(seconds=30))
        await reaching(instance, InstanceState.QUARANTINED, -1)
        changes = await client.get_workflow_handle(run_id).query("changes", result_type=list[InstanceChanged])
        await instance.signal(RolloutInstance.stop)
        await instance.result()
    assert changes[-1].state is InstanceState.QUARANTINED
    assert "probe differs" in changes[-1].reason
    assert parts.calls.count("start rollout-0") == settings.RESTART_BUDGET + 1


async def test_an_instance_whose_run_is_gone_gives_its_engine_back(client: Client, run_id: str) -> None:
    parts = ScriptedParts(instances=1)
    parts.published = {0, 1}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await serving(instance, 0)
        await client.get_workflow_handle(run_id).terminate()
        await instance.signal(RolloutInstance.sync, 1)
        assert await instance.result() == "stopped"
    assert parts.calls[-1] == "release rollout-0"
    assert parts.phases == ["failed"]
