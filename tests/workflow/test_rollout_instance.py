"""One engine's life on behalf of one run."""

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.workflow import Info

from psrl.schemas.config.sync_and_mig import SyncAndMigStrategy, SyncMethod, SyncMode, SyncStrategy
from psrl.schemas.ids import ORCHESTRATOR_QUEUE, InstanceId, RunId, instance_workflow
from psrl.schemas.messages.coordination import SyncAnswer, SyncRequest
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import InstanceChanged, StartInstance
from psrl.workflows.calls import settings
from psrl.workflows.rollout.instance import RolloutInstance
from tests.support.rollout import SPEC
from tests.support.scripted_parts import ScriptedParts
from tests.support.signal_sink import SignalSink

NAME = InstanceId("rollout-0")


async def begin(client: Client, run_id: str, **limits: Any) -> WorkflowHandle[RolloutInstance, str]:
    await client.start_workflow(SignalSink.run, id=run_id, task_queue=ORCHESTRATOR_QUEUE)
    spec = SPEC.model_copy(update={"run_id": RunId(run_id)})
    limits = {"start_timeout_s": 60, **limits}
    start = StartInstance(run_workflow_id=run_id, instance=NAME, spec=spec, version=0, interrupt=True, **limits)
    return await client.start_workflow(
        RolloutInstance.run, start, id=instance_workflow(RunId(run_id), NAME), task_queue=ORCHESTRATOR_QUEUE
    )


async def serving(instance: WorkflowHandle[RolloutInstance, str], version: int) -> InstanceChanged:
    return await reaching(instance, InstanceState.SERVING, version)


async def reaching(
    instance: WorkflowHandle[RolloutInstance, str], state: InstanceState, version: int
) -> InstanceChanged:
    while (await instance.describe()).status is WorkflowExecutionStatus.RUNNING:
        status = await instance.query(RolloutInstance.status)
        if (status.state, status.version) == (state, version):
            return status
        await asyncio.sleep(0.05)
    raise AssertionError(f"the instance ended: {await instance.result()}")


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
    """Field report 19: the engine is resumed in the end, as after an update that succeeded at once."""

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


async def test_an_engine_that_can_never_serve_the_run_is_given_back_at_once_with_the_reason(
    client: Client, run_id: str
) -> None:
    class Unfit(ScriptedParts):
        async def on_pull(self, instance: InstanceId, version: int) -> None:
            raise ApplicationError("version 0 does not fit the model", type="EngineUnfit", non_retryable=True)

    parts = Unfit(instances=1)
    parts.published = {0}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        assert await instance.result() == "stopped"
        [change] = await until_told(client, run_id, 1)
    assert parts.calls == ["start rollout-0", "release rollout-0"]
    assert change.state is InstanceState.STOPPED
    assert change.reason == "pull_weights: EngineUnfit: version 0 does not fit the model"


async def test_a_version_that_was_replaced_and_removed_is_passed_over_without_a_restart(
    client: Client, run_id: str
) -> None:
    asked, newer = asyncio.Event(), asyncio.Event()

    class Gone(ScriptedParts):
        async def on_pull(self, instance: InstanceId, version: int) -> None:
            if version == 1:
                asked.set()
                await newer.wait()
                raise ApplicationError("version 1 is gone", type="WeightsRefused", non_retryable=True)

    parts = Gone(instances=1)
    parts.published = {0, 1, 2}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await serving(instance, 0)
        await instance.signal(RolloutInstance.sync, 1)
        await asked.wait()
        await instance.signal(RolloutInstance.sync, 2)
        newer.set()
        await serving(instance, 2)
        await instance.signal(RolloutInstance.stop)
        await instance.result()
    assert parts.calls == ["start rollout-0", "release rollout-0"]


BUDGET = 2


class Faulty(ScriptedParts):
    """Pulls fail while `bad`; starts are refused while another run holds the instance."""

    bad = False
    held = False

    async def on_start(self, instance: InstanceId) -> None:
        if self.held:
            raise ApplicationError("rollout-0 serves run other", type="InstanceBusy", non_retryable=True)

    async def on_pull(self, instance: InstanceId, version: int) -> None:
        if self.bad:
            raise ApplicationError("probe differs", type="WeightsRefused", non_retryable=True)

    @property
    def starts(self) -> int:
        return self.calls.count("start rollout-0")


async def told(client: Client, run_id: str) -> list[InstanceChanged]:
    return await client.get_workflow_handle(run_id).query("changes", result_type=list[InstanceChanged])


async def until_told(client: Client, run_id: str, number: int) -> list[InstanceChanged]:
    """The first so many changes that the run was told of."""
    while len(changes := await told(client, run_id)) < number:  # noqa: ASYNC110 - a query wakes nobody
        await asyncio.sleep(0.05)
    return changes[:number]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a second or less, for workflows outside the sandbox, which has modules of its own. (The time-skipping
    server does not skip while an engine is held.)"""
    monkeypatch.setattr(settings, "RESTART_PAUSE_MAX_S", 0.05)
    monkeypatch.setattr(settings, "PROBE_PAUSE_S", 0.5)
    monkeypatch.setattr(settings, "BUSY_RETRY_S", 0.1)


async def test_a_quarantined_instance_is_tried_at_growing_intervals_and_tells_why(
    skipping: Client, environment: WorkflowEnvironment, run_id: str
) -> None:
    parts = Faulty(instances=1)
    parts.published, parts.bad = {0}, True
    async with parts.workers(skipping, extra_workflows=[SignalSink]):
        instance = await begin(skipping, run_id, restart_budget=BUDGET)
        await environment.sleep(timedelta(seconds=20))
        await reaching(instance, InstanceState.QUARANTINED, -1)
        assert parts.starts == BUDGET + 1
        await environment.sleep(timedelta(seconds=240))
        assert parts.starts == BUDGET + 4
        changes = await told(skipping, run_id)
        assert [change.state for change in changes] == [InstanceState.STARTING] * BUDGET + [
            InstanceState.QUARANTINED
        ] * 4
        assert all("probe differs" in change.reason for change in changes)
        # After 30, 60 and 120 s; with each try the run learns how long the quarantine has lasted.
        assert [round(change.quarantined_s, -1) for change in changes[BUDGET:]] == [0, 30, 90, 210]
        await instance.signal(RolloutInstance.stop)
        assert await instance.result() == "stopped"


async def test_a_stop_ends_the_pause_of_a_quarantine(client: Client, run_id: str) -> None:
    parts = Faulty(instances=1)
    parts.published, parts.bad = {0}, True
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id, restart_budget=0)
        await until_told(client, run_id, 1)
        await instance.signal(RolloutInstance.stop)
        assert await asyncio.wait_for(instance.result(), settings.PROBE_PAUSE_S / 2) == "stopped"


async def test_a_quarantined_instance_is_readmitted_at_the_version_the_run_has_by_then(
    client: Client, run_id: str, hurry: None
) -> None:
    parts = Faulty(instances=1)
    parts.published, parts.bad = {0, 3}, True
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        instance = await begin(client, run_id, restart_budget=BUDGET)
        await until_told(client, run_id, BUDGET + 2)
        assert (await instance.query(RolloutInstance.status)).state is InstanceState.QUARANTINED
        await instance.signal(RolloutInstance.sync, 3)
        parts.bad = False
        await serving(instance, 3)
        assert (await told(client, run_id))[-1] == InstanceChanged(
            instance=NAME, state=InstanceState.SERVING, version=3
        )
        await instance.signal(RolloutInstance.stop)
        await instance.result()


async def test_an_instance_back_from_quarantine_follows_every_sync(client: Client, run_id: str, hurry: None) -> None:
    """Its budget is still used up then: it heals by serving for long."""
    parts = Faulty(instances=1)
    parts.published, parts.bad = {0, 1, 2}, True
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        instance = await begin(client, run_id, restart_budget=0)
        await until_told(client, run_id, 1)
        parts.bad = False
        await serving(instance, 0)
        for version in (1, 2):
            await instance.signal(RolloutInstance.sync, version)
            await serving(instance, version)
        await instance.signal(RolloutInstance.stop)
        assert await instance.result() == "stopped"
        states = [change.state for change in await told(client, run_id)]
    assert states == [InstanceState.QUARANTINED, *[InstanceState.SERVING] * 3, InstanceState.STOPPED]
    assert parts.starts == 2


async def test_an_instance_that_fails_soon_after_its_return_waits_longer_than_before(
    client: Client, run_id: str, hurry: None
) -> None:
    parts = Faulty(instances=1)
    parts.published = {0}
    gone: list[float] = []
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        instance = await begin(client, run_id, restart_budget=0)
        for _ in range(3):
            await serving(instance, 0)
            began = time.monotonic()
            parts.engine_died[NAME].set()
            await reaching(instance, InstanceState.QUARANTINED, -1)
            await serving(instance, 0)
            gone.append(time.monotonic() - began)
        await instance.signal(RolloutInstance.stop)
        await instance.result()
    assert [seconds >= pause for seconds, pause in zip(gone, (0.5, 1.0, 2.0), strict=True)] == [True] * 3


async def test_an_instance_that_served_well_for_a_while_has_its_budget_again(
    client: Client, run_id: str, hurry: None
) -> None:
    parts = Faulty(instances=1)
    parts.published = {0}
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        instance = await begin(client, run_id, restart_budget=1, restart_budget_heals_s=1.0)
        for number in (1, 2, 3):
            await serving(instance, 0)
            await asyncio.sleep(1.2)
            parts.engine_died[NAME].set()
            await until_told(client, run_id, 2 * number)
        await instance.signal(RolloutInstance.stop)
        await instance.result()
        states = [change.state for change in await told(client, run_id)]
    assert InstanceState.QUARANTINED not in states


async def test_an_instance_that_nobody_asks_for_anything_continues_as_new_in_time(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leases alone fill the history, in a run that was paused over a long weekend."""
    monkeypatch.setattr(Info, "is_continue_as_new_suggested", lambda info: info.get_current_history_length() > 60)

    class ShortLeases(ScriptedParts):
        async def on_hold(self, instance: InstanceId) -> None:
            if self.calls.count("start rollout-0") > 1:
                await asyncio.Event().wait()

    parts = ShortLeases(instances=1)
    parts.published = {0, 1}
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        first = await begin(client, run_id)
        newest = client.get_workflow_handle_for(RolloutInstance.run, first.id)
        while (await newest.describe()).run_id == first.first_execution_run_id:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await newest.signal(RolloutInstance.sync, 1)
        await serving(newest, 1)
        await newest.signal(RolloutInstance.stop)
        assert await newest.result() == "stopped"
    assert parts.calls == ["start rollout-0", "start rollout-0", "release rollout-0"]


async def test_waiting_for_another_run_is_no_failed_restart_and_says_who_holds_it(
    client: Client, run_id: str, hurry: None
) -> None:
    parts = Faulty(instances=1)
    parts.published, parts.held = {0}, True
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        instance = await begin(client, run_id, restart_budget=0)
        [*_, change] = await until_told(client, run_id, 3)
        assert change.state is InstanceState.STARTING
        assert "waiting for another run: start_engine: InstanceBusy: " in change.reason
        assert "rollout-0 serves run other" in change.reason
        parts.held = False
        await serving(instance, 0)
        await instance.signal(RolloutInstance.stop)
        await instance.result()


async def test_another_run_is_not_waited_for_longer_than_a_start_may_take(
    client: Client, run_id: str, hurry: None
) -> None:
    parts = Faulty(instances=1)
    parts.published, parts.held = {0}, True
    async with parts.workers(client, [SignalSink], workflow_runner=UnsandboxedWorkflowRunner()):
        instance = await begin(client, run_id, start_timeout_s=1.0)
        await reaching(instance, InstanceState.QUARANTINED, -1)
        parts.held = False
        await serving(instance, 0)
        await instance.signal(RolloutInstance.stop)
        await instance.result()


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


async def test_leases_cost_the_history_of_the_run_nothing(client: Client, run_id: str) -> None:
    """Fifty instances through a step of half a day would fill it."""
    renewed = asyncio.Event()

    class ShortLeases(ScriptedParts):
        leases = 0

        async def on_hold(self, instance: InstanceId) -> None:
            self.leases += 1
            if self.leases > 5:
                renewed.set()
                await asyncio.Event().wait()

    parts = ShortLeases(instances=1)
    parts.published = {0}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await asyncio.wait_for(renewed.wait(), 30)
        await serving(instance, 0)
        assert [change.state for change in await told(client, run_id)] == [InstanceState.SERVING]
        await instance.signal(RolloutInstance.stop)
        await instance.result()


async def test_an_instance_whose_run_was_terminated_notices_when_its_lease_is_renewed(
    client: Client, run_id: str
) -> None:
    over = asyncio.Event()

    class OneLease(ScriptedParts):
        async def on_hold(self, instance: InstanceId) -> None:
            await over.wait()

    parts = OneLease(instances=1)
    parts.published = {0}
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await serving(instance, 0)
        await client.get_workflow_handle(run_id).terminate()
        over.set()
        assert await instance.result() == "stopped"
    assert parts.calls[-1] == "release rollout-0"


# --- when it syncs ---------------------------------------------------------------------------------------------------


class Hesitant(ScriptedParts):
    """Its coordinator says that the moment is good when the test does."""

    def __init__(self) -> None:
        super().__init__(instances=1)
        self.published = {0, 1, 2}
        self.asked, self.good = asyncio.Queue[SyncRequest](), asyncio.Event()

    async def question(self) -> SyncRequest:
        async with asyncio.timeout(60):
            return await self.asked.get()

    async def on_sync_due(self, request: SyncRequest) -> SyncAnswer:
        self.asked.put_nowait(request)
        while not self.good.is_set():
            activity.heartbeat()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.good.wait(), 1)
        return SyncAnswer(due=True, reason="nothing to do")


def by_status(max_wait_s: float = 3600.0) -> SyncAndMigStrategy:
    return SyncAndMigStrategy(method=SyncMethod.STATUS_BASED, sync=SyncStrategy(threshold=2, max_wait_s=max_wait_s))


async def test_a_sync_waits_for_its_moment_and_asks_anew_for_a_newer_version(client: Client, run_id: str) -> None:
    parts = Hesitant()
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id, strategy=by_status())
        await serving(instance, 0)
        for version in (1, 2):
            await instance.signal(RolloutInstance.sync, version)
            asked = await parts.question()
            assert (asked.instance, asked.version, asked.mode) == (NAME, version, SyncMode.INTERRUPT)
        assert parts.versions[NAME] == 0, "it serves on meanwhile"
        assert NAME not in parts.paused
        parts.good.set()
        await serving(instance, 2)
        await instance.signal(RolloutInstance.stop)
        assert await instance.result() == "stopped"
    assert parts.calls == ["start rollout-0", "release rollout-0"]


async def test_one_that_is_never_told_to_syncs_when_its_patience_ends(client: Client, run_id: str) -> None:
    """As when the coordinator is away: it is asked again and again meanwhile."""

    class Away(Hesitant):
        async def on_sync_due(self, request: SyncRequest) -> SyncAnswer:
            self.asked.put_nowait(request)
            raise ApplicationError("nobody answers", type="Unreachable")

    parts = Away()
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id, strategy=by_status(max_wait_s=3))
        await serving(instance, 0)
        await instance.signal(RolloutInstance.sync, 1)
        await serving(instance, 1)
        await instance.signal(RolloutInstance.stop)
        await instance.result()
    assert parts.asked.qsize() > 1
    assert parts.calls == ["start rollout-0", "release rollout-0"], "and nothing has failed"


async def test_a_wait_for_a_good_moment_ends_with_a_stop_and_with_the_engine(client: Client, run_id: str) -> None:
    parts = Hesitant()
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id, strategy=by_status())
        await serving(instance, 0)
        await instance.signal(RolloutInstance.sync, 1)
        await parts.question()
        parts.engine_died[NAME].set()
        await serving(instance, 1)
        await instance.signal(RolloutInstance.sync, 2)
        await parts.question()
        await instance.signal(RolloutInstance.stop)
        assert await instance.result() == "stopped"
    assert parts.calls == ["start rollout-0", "start rollout-0", "release rollout-0"]


async def test_a_greedy_instance_asks_nobody(client: Client, run_id: str) -> None:
    parts = Hesitant()
    async with parts.workers(client, extra_workflows=[SignalSink]):
        instance = await begin(client, run_id)
        await serving(instance, 0)
        await instance.signal(RolloutInstance.sync, 1)
        await serving(instance, 1)
        await instance.signal(RolloutInstance.stop)
        await instance.result()
    assert parts.sync_requests == []
