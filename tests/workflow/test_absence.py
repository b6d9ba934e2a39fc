"""A stack that nobody ran for longer than its groups may take: only time in which somebody ran a workflow counts.

Hosts and the cpu worker are away by saying nothing, as processes that were killed do; the orchestrator has no worker;
the server is killed. Limits are seconds here. The time-skipping server cannot be used for absences: it does not skip
while a workflow task waits for a worker.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner

from psrl.schemas.config import parse_config
from psrl.schemas.ids import (
    CPU_QUEUE,
    ORCHESTRATOR_QUEUE,
    TRAINER_QUEUE,
    GroupId,
    InstanceId,
    RunId,
    rollout_queue,
    validation_group,
)
from psrl.schemas.messages.data import Admission, AdmitRequest
from psrl.schemas.messages.rewards import Score
from psrl.schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, TurnRequest, TurnResult
from psrl.schemas.messages.run import GroupOutcome, GroupReport, GroupReports, RunPhase, StartEvaluation, StartRun
from psrl.workflows.calls import settings
from psrl.workflows.rollout.evaluation import Evaluation
from psrl.workflows.rollout.group import RolloutGroup
from psrl.workflows.run.absence import Absence
from psrl.workflows.run.control import Control
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.restore import empty_ledger
from psrl.workflows.run.state import RunState
from psrl.workflows.run.training_run import TrainingRun
from tests.support.calls import shorten
from tests.support.scripted_parts import ScriptedParts, minimal_config
from tests.support.temporal import TemporalServer, running_temporal
from tests.workflow.test_rollout_group import begin, start

LIMIT_S = 8.0
ABSENT_S = 12.0
HOST = InstanceId("rollout-0")
TRAJECTORIES = 2
GENERATING, SCORING = GroupId("000001"), GroupId("000002")
"""What the night interrupts."""
VALIDATION = validation_group(0, 0)
Group = WorkflowHandle[RolloutGroup, GroupReport]


@pytest.fixture(autouse=True)
def seconds_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows run outside the sandbox, which would import the settings anew."""
    for name in ("HEARTBEAT", "POLL_START"):
        monkeypatch.setattr(settings, name, timedelta(seconds=2))
    shorten(monkeypatch, heartbeat=timedelta(seconds=2), pickup=timedelta(seconds=2))
    monkeypatch.setattr(settings, "ABSENCE", timedelta(seconds=1))


@pytest.fixture
def own_server() -> Iterator[TemporalServer]:
    with running_temporal() as server:
        yield server


def failed_report(group: GroupId) -> GroupReports:
    return GroupReports(reports=(GroupReport(group_id=group, outcome=GroupOutcome.FAILED),))


class Nightly(ScriptedParts):
    """What is called while it is night dies without a word."""

    def __init__(self) -> None:
        super().__init__(instances=1)
        self.versions[HOST] = 0
        self.night = True
        self.reached = defaultdict[GroupId, asyncio.Event](asyncio.Event)

    async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
        group = request.trajectory.group_id
        if self.night and group in (GENERATING, VALIDATION):
            self.reached[group].set()
            await self.die(instance)
        return self.finished(request, instance)

    async def on_score(self, group: GroupId, index: int) -> Score:
        if self.night:
            self.reached[group].set()
            await asyncio.Event().wait()
        return await super().on_score(group, index)


@asynccontextmanager
async def workers(client: Client, parts: ScriptedParts, *without: str) -> AsyncIterator[None]:
    """Over a connection of their own, as processes would: one takes no two workers of a queue, not even in turn."""
    own = await Client.connect(client.service_client.config.target_host, data_converter=client.data_converter)
    async with parts.workers(own, without=without, workflow_runner=UnsandboxedWorkflowRunner()):
        yield


def orchestrator(client: Client, parts: ScriptedParts) -> AbstractAsyncContextManager[None]:
    return workers(client, parts, CPU_QUEUE, TRAINER_QUEUE, rollout_queue(HOST))


@pytest.mark.timeout(90)
@pytest.mark.parametrize("away", ["workers", "server", "everything"])
async def test_groups_go_on_after_an_absence_longer_than_their_deadline(
    own_server: TemporalServer, run_id: str, away: str
) -> None:
    client, parts = await own_server.connect(), Nightly()
    async with AsyncExitStack() as day, workers(client, parts, ORCHESTRATOR_QUEUE):
        await day.enter_async_context(orchestrator(client, parts))
        groups = [await begin(client, start(run_id, group, timeout_s=LIMIT_S)) for group in (GENERATING, SCORING)]
        await asyncio.gather(parts.reached[GENERATING].wait(), parts.reached[SCORING].wait())
        if away != "server":
            await day.aclose()
        if away != "workers":
            own_server.kill()
        await asyncio.sleep(ABSENT_S)
        parts.night = False
        if away != "workers":
            await asyncio.to_thread(own_server.start)
        if away != "server":
            await day.enter_async_context(orchestrator(client, parts))
        reports = [await group.result() for group in groups]
    assert [(report.outcome, report.reason) for report in reports] == [(GroupOutcome.COMPLETE, "")] * 2
    calls = {
        group: {r.call for r in parts.generated if r.trajectory.group_id == group} for group in (GENERATING, SCORING)
    }
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
    assert (described.close_time - described.start_time).total_seconds() > LIMIT_S - 1
    calls = [
        event.activity_task_scheduled_event_attributes
        async for event in group.fetch_history_events()
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    unheard = [
        min(filter(None, (call.schedule_to_start_timeout.ToTimedelta(), call.schedule_to_close_timeout.ToTimedelta())))
        for call in calls
        if call.task_queue.name == away
    ]
    assert unheard
    assert sum(unheard, timedelta()) <= 2 * TRAJECTORIES * timedelta(seconds=LIMIT_S)


async def test_a_group_that_is_never_silent_for_long_has_no_timer(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ABSENCE", timedelta(minutes=3))
    parts = Nightly()
    parts.night = False
    async with workers(client, parts):
        group = await begin(client, start(run_id))
        assert (await group.result()).outcome is GroupOutcome.COMPLETE
    history = await group.fetch_history()
    assert not any(event.HasField("timer_started_event_attributes") for event in history.events)


async def test_a_validation_round_goes_on_after_an_absence(client: Client, run_id: str) -> None:
    parts = Nightly()
    parts.validation_prompts = 1
    request = StartEvaluation(
        run_id=RunId(run_id),
        run_workflow_id="nobody",
        version=0,
        concurrency=1,
        rollout=start(run_id, timeout_s=LIMIT_S).rollout,
    )
    async with workers(client, parts, ORCHESTRATOR_QUEUE):
        async with orchestrator(client, parts):
            evaluation = await client.start_workflow(
                Evaluation.run, request, id=f"{run_id}/evaluation", task_queue=ORCHESTRATOR_QUEUE
            )
            await parts.reached[VALIDATION].wait()
        await asyncio.sleep(ABSENT_S)
        parts.night = False
        async with orchestrator(client, parts):
            report = await evaluation.result()
    assert (report.scored, report.failed) == (2, 0)


class AskedAtNight(Nightly):
    """Groups die in mid-generation, and the run's question for more room is not answered either."""

    @activity.defn(name="plan_dispatch")
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        if self.night and self.tags:
            await asyncio.Event().wait()
        return await super().plan_dispatch(request)


@pytest.mark.timeout(90)
async def test_a_run_neither_fails_nor_replaces_groups_that_live_on(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The absence is longer than a group may take, and than the run waits for its own calls."""
    monkeypatch.setattr(settings, "SWEEP", timedelta(seconds=0.5))
    monkeypatch.setattr(settings, "ABSENCE", timedelta(seconds=3))
    shorten(monkeypatch, patience=timedelta(seconds=6))
    parts = AskedAtNight()
    parts.total_steps, parts.room_groups = 2, 2
    config = minimal_config(group_timeout_s=LIMIT_S, deployment={"n_rollout_instances": 1})
    async with workers(client, parts, ORCHESTRATOR_QUEUE):
        async with orchestrator(client, parts):
            run = await client.start_workflow(
                TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
            )
            await parts.reached[GENERATING].wait()
            cut_short = set(parts.tags)
        await asyncio.sleep(ABSENT_S)
        parts.night = False
        async with orchestrator(client, parts):
            result = await run.result()
            dropped = (await run.query(TrainingRun.status)).dropped
    assert (result.phase, result.version, dropped) == (RunPhase.DONE, 2, {})
    assert cut_short
    assert cut_short <= set(parts.trained)
    assert max(request.call for request in parts.generated) > 0


def running(admission: Admission, groups: Groups, **absence: float) -> RunState:
    """As an execution carries it to the next in mid-buffer."""
    control = Control(phase=RunPhase.RUNNING)
    return RunState(admission=admission, control=control, groups=groups, absence=Absence(**absence))


async def test_an_absence_between_two_executions_of_a_run_counts_for_no_group(client: Client, run_id: str) -> None:
    parts = ScriptedParts(instances=1)
    admission = await parts.admit_run(AdmitRequest(run_id=run_id, config=minimal_config(), workflow_run_id=run_id))
    parts.room_groups = 0
    ledger = empty_ledger(parse_config(admission.config))
    ledger.reserve(0, (GENERATING,))
    now = datetime.now(UTC).timestamp()
    state = running(admission, Groups(ledger=ledger, started_at={GENERATING: now - 7200}), seen_at=now - 7100)
    async with workers(client, parts):
        run = await client.start_workflow(
            TrainingRun.run,
            StartRun(carried=state.model_dump(mode="json")),
            id=run_id,
            task_queue=ORCHESTRATOR_QUEUE,
        )
        wait = (await run.query(TrainingRun.status)).waits[0]
        await run.terminate()
    assert wait.deadline is not None
    assert wait.deadline.timestamp() > now + 3000


async def test_what_an_absence_cost_says_nothing_about_the_task_in_the_next_execution_either(
    client: Client, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ABSENCE", timedelta(minutes=3))
    parts = ScriptedParts(instances=1)
    config = minimal_config(agentic_rl={"refill_failure_threshold": 1})
    admission = await parts.admit_run(AdmitRequest(run_id=run_id, config=config, workflow_run_id=run_id))
    parts.room_groups = 0
    ledger = empty_ledger(parse_config(admission.config))
    ledger.reserve(0, (GENERATING, SCORING))
    now = datetime.now(UTC).timestamp()
    groups = Groups(ledger=ledger, started_at={GENERATING: now - 20, SCORING: now})
    state = running(admission, groups, seen_at=now, back_at=now - 10)
    async with workers(client, parts):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(carried=state.model_dump(mode="json")), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await run.signal(TrainingRun.group_reports, failed_report(GENERATING))
        assert (await run.query(TrainingRun.status)).phase is RunPhase.RUNNING
        await run.signal(TrainingRun.group_reports, failed_report(SCORING))
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
    assert "1 groups in a row" in str(failed.value.cause)
