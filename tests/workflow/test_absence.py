"""A stack that nobody ran for longer than its groups may take: only time in which somebody ran a workflow counts.

Hosts and the cpu worker are away by saying nothing, as processes that were killed do; the orchestrator has no worker;
the server is killed. Limits are seconds here. The time-skipping server cannot be used for absences: it does not skip
while a workflow task waits for a worker.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner

from psrl.schemas.ids import CPU_QUEUE, ORCHESTRATOR_QUEUE, TRAINER_QUEUE, GroupId, InstanceId, rollout_queue
from psrl.schemas.messages.rewards import Score
from psrl.schemas.messages.rollout import GenerateRequest, GenerateResult
from psrl.schemas.messages.run import GroupOutcome, GroupReport
from psrl.workflows import settings
from psrl.workflows.rollout_group import RolloutGroup
from tests.support.scripted_parts import ScriptedParts
from tests.support.temporal import TemporalServer, running_temporal
from tests.workflow.test_rollout_group import begin, start

LIMIT_S = 8.0
ABSENT_S = 12.0
HOST = InstanceId("rollout-0")
GENERATING, SCORING = GroupId("000001"), GroupId("000002")
"""What the night interrupts."""
Group = WorkflowHandle[RolloutGroup, GroupReport]


@pytest.fixture(autouse=True)
def seconds_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows run outside the sandbox, which would import the settings anew."""
    for name in ("HEARTBEAT", "TRAIN_HEARTBEAT", "POLL_START"):
        monkeypatch.setattr(settings, name, timedelta(seconds=2))
    monkeypatch.setattr(settings, "ABSENCE", timedelta(seconds=1))


@pytest.fixture
def own_server() -> Iterator[TemporalServer]:
    with running_temporal() as server:
        yield server


class Nightly(ScriptedParts):
    """What is called while it is night dies without a word."""

    def __init__(self) -> None:
        super().__init__(instances=1)
        self.versions[HOST] = 0
        self.night = True
        self.reached = {GENERATING: asyncio.Event(), SCORING: asyncio.Event()}

    async def on_generate(self, request: GenerateRequest, instance: InstanceId) -> GenerateResult:
        group = request.trajectory.group_id
        if self.night and group == GENERATING:
            await self._die(group)
        return self.finished(request, instance)

    async def on_score(self, group: GroupId, index: int) -> Score:
        if self.night:
            await self._die(group)
        return await super().on_score(group, index)

    async def _die(self, group: GroupId) -> None:
        self.reached[group].set()
        await asyncio.Event().wait()


@asynccontextmanager
async def workers(client: Client, parts: ScriptedParts, *without: str) -> AsyncIterator[None]:
    """Over a connection of their own, as processes would: one takes no two workers of a queue, not even in turn."""
    own = await Client.connect(client.service_client.config.target_host, data_converter=client.data_converter)
    async with parts.workers(own, without=without, workflow_runner=UnsandboxedWorkflowRunner()):
        yield


def orchestrator(client: Client, parts: ScriptedParts) -> "AsyncIterator[None]":
    return workers(client, parts, CPU_QUEUE, TRAINER_QUEUE, rollout_queue(HOST))  # type: ignore[return-value]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("away", ["workers", "server", "everything"])
async def test_groups_go_on_after_an_absence_longer_than_their_deadline(
    own_server: TemporalServer, run_id: str, away: str
) -> None:
    client, parts = await own_server.connect(), Nightly()
    async with AsyncExitStack() as day, workers(client, parts, ORCHESTRATOR_QUEUE):
        await day.enter_async_context(orchestrator(client, parts))  # type: ignore[arg-type]
        groups = [
            await begin(client, start(run_id, group_id=group, timeout_s=LIMIT_S)) for group in (GENERATING, SCORING)
        ]
        await asyncio.gather(*(reached.wait() for reached in parts.reached.values()))
        if away != "server":
            await day.aclose()
        if away != "workers":
            own_server.kill()
        await asyncio.sleep(ABSENT_S)
        parts.night = False
        if away != "workers":
            await asyncio.to_thread(own_server.start)
        if away != "server":
            await day.enter_async_context(orchestrator(client, parts))  # type: ignore[arg-type]
        reports = [await group.result() for group in groups]
    assert [(report.outcome, report.reason) for report in reports] == [(GroupOutcome.COMPLETE, "")] * 2
    calls = {group: {r.call for r in parts.generated if r.trajectory.group_id == group} for group in parts.reached}
    assert calls[SCORING] == {0}, "what was finished is not generated again"
    assert len(calls[GENERATING]) > 1, "the calls of before the absence are fenced off"


@pytest.mark.parametrize("away", [rollout_queue(HOST), CPU_QUEUE])
async def test_a_group_nobody_works_for_fails_within_twice_its_deadline(client: Client, run_id: str, away: str) -> None:
    """Nobody was absent: a silence is granted once, then a timer breaks it."""
    parts = Nightly()
    parts.night = False
    async with workers(client, parts, away):
        group = await begin(client, start(run_id, timeout_s=LIMIT_S))
        report = await group.result()
    assert report.outcome is GroupOutcome.FAILED
    described = await group.describe()
    assert described.close_time is not None
    lived_s = (described.close_time - described.start_time).total_seconds()
    assert LIMIT_S - 1 < lived_s < 2 * LIMIT_S + 4
