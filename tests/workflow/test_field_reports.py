"""Faults reported from comparable systems, as whole runs against scripted parts (docs/field-reports.md lists all)."""

import asyncio
import re
from collections import Counter

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from psrl.schemas.ids import CPU_QUEUE, ORCHESTRATOR_QUEUE, TRAINER_QUEUE, GroupId, InstanceId, RunId, rollout_queue
from psrl.schemas.messages.data import AdmitRequest, Restored, RestoreRequest
from psrl.schemas.messages.rewards import Score, ScoreOutcome
from psrl.schemas.messages.rollout import DispatchPlan, DispatchPlanRequest, TurnRequest, TurnResult
from psrl.schemas.messages.run import (
    GroupOutcome,
    GroupReport,
    GroupReports,
    RunPhase,
    RunResult,
    RunStatus,
    StartRun,
    StopRun,
)
from psrl.schemas.messages.training import OpenTrainerRequest, PublishResult, StepRequest
from psrl.workflows.run.training_run import TrainingRun
from tests.support.scripted_parts import ScriptedParts, minimal_config

FILTER = {"enable": True, "name": "dynamic_sampling_filter"}


async def begin(client: Client, run_id: str, config: dict[str, object]):  # type: ignore[no-untyped-def]
    return await client.start_workflow(
        TrainingRun.run, StartRun(config=config), id=run_id, task_queue=ORCHESTRATOR_QUEUE
    )


async def run_to_end(client: Client, run_id: str, parts: ScriptedParts, config: dict[str, object]) -> RunResult:
    async with parts.workers(client):
        result: RunResult = await (await begin(client, run_id, config)).result()
        return result


async def failure_of(client: Client, run_id: str, parts: ScriptedParts, config: dict[str, object]) -> str:
    with pytest.raises(WorkflowFailureError) as failed:
        await run_to_end(client, run_id, parts, config)
    return str(failed.value.cause)


async def until(run: object, holds: object, timeout_s: float = 60) -> RunStatus:
    """The first status for which `holds`."""
    async with asyncio.timeout(timeout_s):
        while True:
            status: RunStatus = await run.query(TrainingRun.status)  # type: ignore[attr-defined]
            if holds(status):  # type: ignore[operator]
                return status
            await asyncio.sleep(0.02)


def every_prompt_once(parts: ScriptedParts, prompts: int) -> None:
    assert Counter(parts.places[group] for group in parts.trained) == Counter(range(prompts))


# --- hangs and crash recovery ----------------------------------------------------------------------------------------


class NoCoordinator(ScriptedParts):
    @activity.defn(name="plan_dispatch")
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        raise ApplicationError("the coordinator at 127.0.0.1:1 does not answer", type="Unreachable")


@pytest.mark.parametrize(
    ("parts", "missing", "named"),
    [
        (ScriptedParts, (CPU_QUEUE,), "the cpu worker did not come up within 3 s"),
        (ScriptedParts, (TRAINER_QUEUE,), "the trainer did not come up within 3 s"),
        (
            ScriptedParts,
            tuple(rollout_queue(InstanceId(name)) for name in ("rollout-0", "rollout-1")),
            "did not come up within 3 s (psrl.deployment.start_timeout_s); their logs are rollout-*.log",
        ),
        (NoCoordinator, (), "the coordinator did not come up within 3 s"),
    ],
    ids=["cpu worker", "trainer", "rollout hosts", "coordinator"],
)
async def test_a_role_that_never_registers_fails_the_run_within_the_start_limit_and_is_named(
    client: Client, run_id: str, parts: type[ScriptedParts], missing: tuple[str, ...], named: str
) -> None:
    """1, verl#3895: a run printed only monitor lines."""
    config = minimal_config(deployment={"n_rollout_instances": 2, "start_timeout_s": 3})
    async with parts().workers(client, without=missing):
        run = await begin(client, run_id, config)
        status = await until(run, lambda status: status.phase is RunPhase.FAILED)
    assert named in status.reason
    if "rollout" in named:
        assert {"rollout-0", "rollout-1"} <= set(re.findall(r"rollout-\d", status.reason))


class BrokenTrainer(ScriptedParts):
    @activity.defn(name="open_trainer")
    async def open_trainer(self, request: OpenTrainerRequest) -> PublishResult:
        raise ApplicationError("CUDA out of memory", type="OutOfMemoryError")


async def test_a_trainer_that_fails_on_every_try_is_told_of_with_its_last_error(client: Client, run_id: str) -> None:
    async with BrokenTrainer().workers(client):
        run = await begin(client, run_id, minimal_config(deployment={"start_timeout_s": 3}))
        status = await until(run, lambda status: status.phase is RunPhase.FAILED)
    assert "the trainer did not come up within 3 s (psrl.deployment.start_timeout_s)" in status.reason
    assert "the last try failed: CUDA out of memory; its log is trainer.log" in status.reason


async def test_a_trajectory_that_hangs_and_a_report_that_is_junk_cost_nobody_anything(
    client: Client, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """4, verl#7155: 9 prompts, one never leaves running, one tag is junk."""
    hung = asyncio.Event()

    class OneHangs(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if request.trajectory.group_id == "000004" and request.call == 0:
                hung.set()
                await self.die(instance)  # no heartbeat: the lease of 10 s expires
            return self.finished(request, instance)

    parts = OneHangs(prompts=9, total_steps=3)
    async with parts.workers(client):
        run = await begin(client, run_id, minimal_config(staleness_buffer_entries=3, staleness=2))
        await hung.wait()
        await run.signal("group_reports", "junk")
        junk = GroupReport(group_id=GroupId("junk"), outcome=GroupOutcome.COMPLETE)
        await run.signal("group_reports", GroupReports(reports=(junk,)))
        assert (await run.result()).phase is RunPhase.DONE
    every_prompt_once(parts, 9)
    assert len(parts.tags) == 9
    told = caplog.text
    assert "group 000004" in told
    assert "rerouting" in told
    assert "report of group junk" in told


async def test_workers_that_die_silently_are_replaced_and_the_batch_completes(client: Client, run_id: str) -> None:
    """6, SkyRL#1173: 128 trajectories needed, 3 workers raise."""

    class ThreeDie(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if instance != "rollout-0" and not self.engine_died[instance].is_set() and instance not in died:
                died.add(instance)
                self.engine_died[instance].set()
                raise RuntimeError(f"{instance} is gone")
            return self.finished(request, instance)

    died: set[InstanceId] = set()
    parts = ThreeDie(instances=4, total_steps=1)
    parts.room_groups = 32
    deployment = {"n_rollout_instances": 4}
    result = await run_to_end(
        client, run_id, parts, minimal_config(staleness_buffer_entries=32, rollout_n=4, deployment=deployment)
    )
    assert result.phase is RunPhase.DONE
    assert died == {"rollout-1", "rollout-2", "rollout-3"}
    assert len(parts.scored) == 128
    assert len(parts.trained) == len(parts.tags) == 32


async def test_a_judge_that_sleeps_holds_no_batch_and_is_cancelled(client: Client, run_id: str) -> None:
    """12, slime#2176: one judge sleeps 600 s, others fill the batch."""
    cancelled = asyncio.Event()

    class OneSleeps(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            if group == "000001":
                try:
                    while True:
                        activity.heartbeat()
                        await asyncio.sleep(0.1)
                finally:
                    cancelled.set()
            return await super().on_score(group, index)

    parts = OneSleeps(total_steps=1)
    redundant = {"redundant_rollout": {"enable": True, "redundant_global_batch_size": 3}}
    result = await run_to_end(client, run_id, parts, minimal_config(staleness=0, rollout_coordination=redundant))
    assert result.phase is RunPhase.DONE
    assert set(parts.trained) == {"000000", "000002"}
    assert parts.cancelled["000001"] in {"dropped", "aborted"}
    await asyncio.wait_for(cancelled.wait(), 60)


# --- staleness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 3, 5])
async def test_for_every_lost_group_one_prompt_is_issued(client: Client, run_id: str, lost: int) -> None:
    """35, open-instruct PR#1738: drop k -> exactly k prompts issued. 128, AReaL#450, PR#567; slime PR#2305, PR#2217: 3
    of 8 filtered -> exactly 3 more."""

    class Flat(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            flat = int(group) < lost
            return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0 if flat else float(index))

    parts = Flat(total_steps=1)
    config = minimal_config(staleness=0, staleness_buffer_entries=8, group_post_process=FILTER)
    assert (await run_to_end(client, run_id, parts, config)).phase is RunPhase.DONE
    assert len(parts.tags) == 8 + lost
    assert len(parts.trained) == 8


async def test_a_rollout_that_takes_much_longer_stays_within_the_bound_or_is_waited_for(
    client: Client, run_id: str
) -> None:
    """37, SkyRL docs (2A): one rollout is 10 times longer; never trained late."""
    release = asyncio.Event()

    class OneIsSlow(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            while request.trajectory.group_id == "000001" and not release.is_set():
                activity.heartbeat()
                await asyncio.sleep(0.1)
            return self.finished(request, instance)

    parts = OneIsSlow(total_steps=6)
    async with parts.workers(client):
        run = await begin(client, run_id, minimal_config(staleness=1))
        await until(run, lambda status: status.version == 1 and status.occupied_groups >= 2)
        assert sorted(parts.batches) == [0], "its last buffer waits for it, although others could fill that"
        release.set()
        assert (await run.result()).phase is RunPhase.DONE
    for buffer, batch in parts.batches.items():
        assert all(parts.tags[group] <= buffer <= parts.tags[group] + 1 for group in batch.taken)
    assert parts.trained["000001"] == 1


async def test_a_run_taken_up_at_step_50_samples_first_with_version_50(client: Client, run_id: str) -> None:
    """38, trl PR#5293: a worker sampled before the checkpoint was loaded, and version 0 passed the filter."""

    class At50(ScriptedParts):
        @activity.defn(name="restore_run")
        async def restore_run(self, request: RestoreRequest) -> Restored:
            assert self.admission is not None
            self.published.update(range(51))
            return Restored(
                admission=self.admission,
                version=50,
                batch=(),
                kept=(),
                unfinished=(),
                redraw=(),
                next_place=100,
                next_group=100,
            )

    parts = At50(prompts=104, total_steps=52)
    config = minimal_config()
    async with parts.workers(client):
        await parts.admit_run(AdmitRequest(run_id=RunId(run_id), config=config, workflow_run_id=""))
        run = await client.start_workflow(
            TrainingRun.run, StartRun(resume=True), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        assert (await run.result()).version == 52
    assert sorted(parts.batches) == [50, 51]
    assert min(request.version_tag for request in parts.generated) == 50
    assert parts.generated[0].version_tag == 50


# --- what is measured ------------------------------------------------------------------------------------------------


async def test_complete_groups_and_the_trainers_wait_are_told_apart_with_every_step(
    client: Client, run_id: str
) -> None:
    """125, trl PR#6715: depth, sample wait and trainer wait are three measures (the second is the store's). Four groups
    are left when the first step ends, and for the fourth step there is no room until it was asked for in vain."""
    in_step, let_go, no_room = asyncio.Event(), asyncio.Event(), asyncio.Event()
    now = asyncio.get_running_loop().time

    class FirstHeld(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            if request.buffer == 0:
                in_step.set()
                await let_go.wait()

        @activity.defn(name="plan_dispatch")
        async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
            if not self.room_groups:
                no_room.set()
            return await super().plan_dispatch(request)

    parts = FirstHeld(total_steps=4)
    async with parts.workers(client):
        run = await begin(client, run_id, minimal_config(staleness=2))
        await in_step.wait()
        await until(run, lambda status: status.occupied_groups == 4)
        parts.room_groups = 0
        let_go.set()
        await until(run, lambda status: status.step == 3)
        waiting_since = now()
        no_room.clear()
        await no_room.wait()
        waited_s = now() - waiting_since
        parts.room_groups = 8
        await run.result()
    assert [step.queue_depth for step in parts.steps[1:]] == [4, 2, 2]
    assert parts.steps[3].waited_s >= waited_s


# --- failed rollouts, filters, the end of the data -------------------------------------------------------------------


async def test_one_failing_rollout_of_64_fails_no_step(client: Client, run_id: str) -> None:
    """87, SkyRL#1613, PR#1986. The documented rest: a group of which one cannot be scored is replaced as a whole, a
    rollout whose engine raised goes on elsewhere."""

    class OneOf64(ScriptedParts):
        async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
            if (request.trajectory.group_id, request.trajectory.index, request.call) == ("000002", 3, 0):
                raise RuntimeError("out of memory")
            return self.finished(request, instance)

        async def on_score(self, group: GroupId, index: int) -> Score:
            if (group, index) == ("000005", 5):
                return Score(index=index, outcome=ScoreOutcome.FAILED, error="ValueError: no verdict")
            return await super().on_score(group, index)

    parts = OneOf64(total_steps=1)
    result = await run_to_end(
        client, run_id, parts, minimal_config(staleness=0, staleness_buffer_entries=8, rollout_n=8)
    )
    assert result.phase is RunPhase.DONE
    assert set(parts.trained) == {f"{number:06d}" for number in range(9)} - {"000005"}
    assert parts.cancelled["000005"] == "failed"


async def test_a_task_of_which_everything_is_filtered_stops_and_names_it_with_the_share(
    client: Client, run_id: str
) -> None:
    """127, BytedTsinghua-SIA/DAPO#22, #28; verl#953, #1108; prime-rl PR#2277: all rewards equal."""

    class Flat(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0)

    parts = Flat()
    limits = {"group_post_process": {**FILTER, "max_consecutive_drops": 5}}
    told = await failure_of(client, run_id, parts, minimal_config(**limits))
    assert re.search(r"\d+ groups in a row could not be trained on \(\d+% of all drawn\)", told)
    assert "all 2 rewards are 1" in told
    assert "Data: ['train.jsonl'], reward: module:reward" in told
    assert len(parts.tags) <= 5 + 4, "bounded: what was in flight when the limit was reached, and no more"


async def test_what_was_accepted_before_the_data_ended_is_trained(client: Client, run_id: str) -> None:
    """135, OpenRLHF#1310: 4 prompts, batch 4, one filtered. A replacement there always is: the order goes on with the
    next epoch, so that the batch is whole."""

    class OneFlat(ScriptedParts):
        async def on_score(self, group: GroupId, index: int) -> Score:
            return Score(index=index, outcome=ScoreOutcome.SCORED, reward=1.0 if group == "000001" else float(index))

    parts = OneFlat(prompts=4, total_steps=1)
    config = minimal_config(staleness=0, staleness_buffer_entries=4, group_post_process=FILTER)
    assert (await run_to_end(client, run_id, parts, config)).phase is RunPhase.DONE
    assert set(parts.trained) == {"000000", "000002", "000003", "000004"}


async def test_a_run_stopped_at_the_end_of_an_epoch_goes_on_with_the_next(client: Client, run_id: str) -> None:
    """105, verl#7401, PR#7974: stopped at the last step of epoch 1 of 3."""
    reached, let_go = asyncio.Event(), asyncio.Event()

    class Held(ScriptedParts):
        async def on_update(self, request: StepRequest) -> None:
            if request.buffer == 1:
                reached.set()
                await let_go.wait()

    parts = Held(prompts=4, total_steps=6)
    async with parts.workers(client):
        run = await begin(client, run_id, minimal_config(staleness=0))
        await reached.wait()
        await run.signal(TrainingRun.stop, StopRun())
        let_go.set()
        stopped = await run.result()
        assert (stopped.phase, stopped.version) == (RunPhase.STOPPED, 2)
        run = await client.start_workflow(
            TrainingRun.run, StartRun(resume=True), id=run_id, task_queue=ORCHESTRATOR_QUEUE
        )
        assert (await run.result()).version == 6
    every_prompt_once(parts, 3 * 4)
