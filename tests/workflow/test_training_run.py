"""The whole run against scripted parts."""

import asyncio
from contextlib import suppress

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from psrl.schemas.ids import ORCHESTRATOR_QUEUE, GroupId, InstanceId
from psrl.schemas.messages.coordination import SyncAnswer, SyncRequest
from psrl.schemas.messages.data import AdmitRequest
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from psrl.schemas.messages.rollout import TurnRequest, TurnResult
from psrl.schemas.messages.run import RunPhase, RunResult, RunStatus, StartRun, StepHeld
from psrl.schemas.messages.training import StepRequest
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config


async def run_to_end(client: Client, run_id: str, parts: ScriptedParts, config: dict[str, object]) -> RunResult:
    async with parts.workers(client):
        return await client.execute_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )


@pytest.mark.parametrize("staleness", [0, 1, 2])
async def test_a_run_trains_every_step_and_no_group_twice(client: Client, run_id: str, staleness: int) -> None:
    parts = ScriptedParts(total_steps=5)
    result = await run_to_end(client, run_id, parts, minimal_config(staleness=staleness))
    assert (result.phase, result.steps, result.version) == (RunPhase.DONE, 5, 5)
    assert sorted(parts.batches) == [0, 1, 2, 3, 4]
    assert len(parts.trained) == 10
    for buffer, batch in parts.batches.items():
        for group in batch.taken:
            assert parts.tags[group] <= buffer <= parts.tags[group] + staleness


async def test_no_group_is_drawn_that_the_run_cannot_use(client: Client, run_id: str) -> None:
    parts = ScriptedParts(total_steps=3)
    await run_to_end(client, run_id, parts, minimal_config(staleness=2))
    assert len(parts.tags) == 6


async def test_the_last_step_saves_a_checkpoint_and_every_part_is_given_back(client: Client, run_id: str) -> None:
    parts = ScriptedParts(total_steps=2)
    result = await run_to_end(client, run_id, parts, minimal_config())
    assert parts.calls.index("checkpoint v2") < parts.calls.index("checkpoint v2 complete")
    assert parts.calls.index("checkpoint v2 complete") < parts.calls.index("close_trainer")
    assert result.checkpoint == "checkpoint"
    assert {"close_trainer", "release rollout-0", "release rollout-1"} <= set(parts.calls)
    assert parts.phases[-1] == "done"


async def test_validation_runs_before_and_after_training_when_there_are_validation_files(
    client: Client, run_id: str
) -> None:
    parts = ScriptedParts(total_steps=2)
    config = minimal_config()
    config["data"] = {"train_files": ["t"], "val_files": ["v"], "max_response_length": 8}
    await run_to_end(client, run_id, parts, config)
    assert [(e.version, e.scored, e.failed) for e in parts.evaluations] == [(0, 4, 0), (2, 4, 0)]


async def test_a_run_that_is_refused_fails_with_the_users_fault_and_touches_nothing(
    client: Client, run_id: str
) -> None:
    class Refusing(ScriptedParts):
        async def on_admit(self, request: AdmitRequest) -> None:
            raise ApplicationError("data.train_files[0]=x: no such file", type="DataError", non_retryable=True)

    parts = Refusing()
    with pytest.raises(WorkflowFailureError) as failure:
        await run_to_end(client, run_id, parts, minimal_config())
    async with parts.workers(client):
        status = await client.get_workflow_handle_for(TrainingRun.run, run_id).query(TrainingRun.status)
    assert (status.phase, status.reason) == (RunPhase.FAILED, "DataError: data.train_files[0]=x: no such file")
    cause = failure.value.cause.cause  # type: ignore[union-attr]
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.message) == ("DataError", "data.train_files[0]=x: no such file")
    assert parts.calls == []


async def test_a_failed_group_is_replaced_by_exactly_one_fresh_prompt(client: Client, run_id: str) -> None:
    class OneBadReward(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            if group == "000001":
                return Score(index=index, outcome=ScoreOutcome.FAILED, error="judge said no")
            return await super().on_score(group, index)

    parts = OneBadReward(total_steps=3)
    await run_to_end(client, run_id, parts, minimal_config())
    assert len(parts.tags) == 7
    assert "000001" not in parts.trained
    assert ("000001", 0) not in parts.scored


async def test_a_run_whose_every_group_fails_stops_and_names_the_reason_and_the_data(
    client: Client, run_id: str
) -> None:
    class NeverScored(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            return Score(index=index, outcome=ScoreOutcome.FAILED, error="judge said no")

    parts = NeverScored()
    with pytest.raises(WorkflowFailureError) as failure:
        await run_to_end(client, run_id, parts, minimal_config(agentic_rl={"refill_failure_threshold": 4}))
    text = str(failure.value.cause)
    assert "judge said no" in text
    assert "train.jsonl" in text
    assert parts.phases[-1] == "failed"


async def test_equal_rewards_are_filtered_and_each_filtered_group_is_replaced(client: Client, run_id: str) -> None:
    class ThreeFlatGroups(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            flat = group in {"000000", "000002", "000003"}
            return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0 if flat else float(index))

    parts = ThreeFlatGroups(total_steps=3)
    config = minimal_config(group_post_process={"enable": True, "name": "dynamic_sampling_filter"})
    await run_to_end(client, run_id, parts, config)
    assert len(parts.tags) == 9
    assert not {"000000", "000002", "000003"} & set(parts.trained)


async def test_a_paused_run_starts_no_step_and_goes_on_after_resume(client: Client, run_id: str) -> None:
    parts = ScriptedParts(total_steps=3)
    reached, release = asyncio.Event(), asyncio.Event()

    class Held(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            reached.set()
            await release.wait()

    parts = Held(total_steps=3)
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=minimal_config()), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await reached.wait()
        await run.signal(TrainingRun.pause)
        release.set()
        status = await until(run, lambda status: status.step == 1)
        assert status.phase is RunPhase.PAUSED
        assert status.waiting_for == "signal `resume`"
        assert sorted(parts.batches) == [0]
        await run.signal(TrainingRun.resume)
        result: RunResult = await run.result()
    assert result.phase is RunPhase.DONE


async def test_a_step_that_is_held_up_pauses_the_run_says_why_and_goes_on(client: Client, run_id: str) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    class Held(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            reached.set()
            await release.wait()

    parts = Held(total_steps=4)
    parts.room_groups = 1
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=minimal_config()), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await reached.wait()
        await run.signal(TrainingRun.step_held, StepHeld(buffer=0, reason="the disk under weights is full"))
        status = await run.query(TrainingRun.status)
        assert (status.phase, status.reason) == (RunPhase.PAUSED, "the disk under weights is full")
        first = status.waits[0]
        assert (first.what, first.owner, first.deadline) == (
            "step 0: the disk under weights is full",
            "a person",
            None,
        )
        await run.signal(TrainingRun.step_held, StepHeld(buffer=0, reason=""))
        status = await run.query(TrainingRun.status)
        assert (status.phase, status.reason) == (RunPhase.RUNNING, "")
        release.set()
        assert (await run.result()).phase is RunPhase.DONE


async def test_every_wait_has_an_owner_and_all_but_a_persons_a_deadline(client: Client, run_id: str) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    class Held(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            reached.set()
            await release.wait()

        async def on_score(self, group: GroupId, index: int) -> Score:
            if int(group) >= 2:
                await release.wait()
            return await super().on_score(group, index)

    parts = Held(total_steps=3)
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=minimal_config()), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await reached.wait()
        status = await run.query(TrainingRun.status)
        assert status.waiting_for == f"step 0 to be trained ({run_id}/step/000000)"
        assert status.waits[0].owner == "the trainer"
        assert status.waits[0].deadline is not None
        release.set()
        await run.result()
        assert (await run.query(TrainingRun.status)).waits == ()


async def test_a_wait_for_groups_names_the_one_that_is_due_first(client: Client, run_id: str) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    class SlowReward(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            reached.set()
            await release.wait()
            return await super().on_score(group, index)

    parts = SlowReward(total_steps=1)
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=minimal_config()), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await reached.wait()
        wait = (await run.query(TrainingRun.status)).waits[0]
        assert wait.what.startswith("buffer 0: 0 of 2 groups complete")
        assert wait.deadline is not None
        assert (wait.deadline - wait.since).total_seconds() == pytest.approx(3600, abs=60)
        assert wait.otherwise == "group 000000 is given up and replaced"
        release.set()
        await run.result()


async def test_a_stopped_run_finishes_its_step_saves_and_gives_everything_back(client: Client, run_id: str) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    class Held(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            reached.set()
            await release.wait()

    parts = Held(total_steps=50)
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=minimal_config()), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        await reached.wait()
        await run.signal(TrainingRun.stop)
        release.set()
        result = await run.result()
    assert (result.phase, result.steps) == (RunPhase.STOPPED, 1)
    assert "checkpoint v1 complete" in parts.calls
    assert parts.phases[-1] == "stopped"


async def test_an_engine_that_dies_is_restarted_and_the_run_completes(client: Client, run_id: str) -> None:
    restarted = asyncio.Event()

    class Dying(ScriptedParts):
        async def on_start(self, instance: InstanceId) -> None:
            if self.calls.count(f"start {instance}") == 2:
                restarted.set()

        async def on_update(self, request: StepRequest) -> None:
            if request.buffer == 0:
                self.engine_died[self.instances[0]].set()
            if request.buffer == 5:
                await restarted.wait()

    parts = Dying(total_steps=6)
    result = await run_to_end(client, run_id, parts, minimal_config())
    assert result.phase is RunPhase.DONE
    assert parts.calls.count("start rollout-0") == 2


async def test_a_run_fails_naming_the_instances_when_none_is_left(skipping: Client, run_id: str) -> None:
    class Broken(ScriptedParts):
        async def on_pull(self, instance: InstanceId, version: int) -> None:
            raise ApplicationError("shard 3 is damaged", type="WeightsRefused", non_retryable=True)

    parts = Broken(total_steps=2)
    with pytest.raises(WorkflowFailureError) as failure:
        await run_to_end(skipping, run_id, parts, minimal_config())
    assert "rollout-0" in str(failure.value.cause)
    assert "shard 3 is damaged" in str(failure.value.cause)


async def test_a_run_whose_engines_can_never_serve_it_ends_at_once_with_the_reason(client: Client, run_id: str) -> None:
    """No pause is skipped here: an attempt more would take its time."""

    class Unfit(ScriptedParts):
        async def on_start(self, instance: InstanceId) -> None:
            raise ApplicationError("vLLM cannot run it: no such kernel", type="EngineUnfit", non_retryable=True)

    parts = Unfit(total_steps=2)
    with pytest.raises(WorkflowFailureError) as failure:
        await run_to_end(client, run_id, parts, minimal_config())
    assert "no rollout instance is left" in str(failure.value.cause)
    assert "vLLM cannot run it: no such kernel" in str(failure.value.cause)
    assert all(parts.calls.count(f"start {name}") == 1 for name in parts.instances)


async def test_interrupted_trajectories_are_routed_again_and_finish(client: Client, run_id: str) -> None:
    class InterruptedOnce(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.call == 0:
                return self.interrupted(request, tokens=2)
            return self.finished(request, instance, tokens=5)

    parts = InterruptedOnce(total_steps=2)
    result = await run_to_end(client, run_id, parts, minimal_config())
    assert result.phase is RunPhase.DONE
    assert all(parts.times_generated(group, i) == 2 for group in parts.trained for i in range(2))


async def until(run: object, holds: object) -> RunStatus:
    """The first status for which `holds`: asks again after every answer."""
    while True:
        status: RunStatus = await run.query(TrainingRun.status)  # type: ignore[attr-defined]
        if holds(status):  # type: ignore[operator]
            return status
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_seamless_run_tells_its_instances_late_and_never_too_late(
    client: Client, run_id: str, staleness: int
) -> None:
    """With eta = 0 the next buffer needs the new version, so nothing is held back."""
    strategy = {"sync_and_mig_strategy": {"sync": {"seamless_train_version": 2}}}
    parts = ScriptedParts(total_steps=5)
    config = minimal_config(staleness=staleness, rollout_coordination=strategy)
    result = await run_to_end(client, run_id, parts, config)
    assert (result.phase, result.steps) == (RunPhase.DONE, 5)
    for buffer, batch in parts.batches.items():
        assert all(parts.tags[group] <= buffer <= parts.tags[group] + staleness for group in batch.taken)


async def test_a_status_based_run_shows_who_waits_for_a_good_moment(client: Client, run_id: str) -> None:
    asked, good = asyncio.Event(), asyncio.Event()

    class Hesitant(ScriptedParts):
        async def on_sync_due(self, request: SyncRequest) -> SyncAnswer:
            asked.set()
            while not good.is_set():
                activity.heartbeat()
                with suppress(TimeoutError):
                    await asyncio.wait_for(good.wait(), 1)
            return SyncAnswer(due=True, reason="scripted")

    parts = Hesitant(total_steps=3)
    strategy = {"sync_and_mig_strategy": {"method": "status_based", "sync": {"threshold": 1}}}
    config = minimal_config(staleness=1, rollout_coordination=strategy)
    async with parts.workers(client):
        run = await client.start_workflow(
            TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        async with asyncio.timeout(60):
            await asked.wait()
        waits = (await run.query(TrainingRun.status)).waits
        told = [wait for wait in waits if wait.owner == "the coordinator" and "good moment" in wait.what]
        assert {wait.what for wait in told} >= {"a good moment for rollout-0 to sync to v1 (by request_num)"}
        assert all(wait.otherwise == "it syncs all the same" and wait.deadline for wait in told)
        good.set()
        assert (await run.result()).phase is RunPhase.DONE
