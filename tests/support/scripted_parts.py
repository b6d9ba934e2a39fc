"""Every activity of the system, scripted in memory: for tests of workflows only.

A test subclasses or patches the behaviour it needs (`on_generate`, `on_score`, …); everything that was asked for is
recorded. The class also holds the rules a real part would enforce (a version is published once, a trajectory is in one
batch), so that a workflow that breaks them fails its test.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from psrl.activities.filters.registry import filter_name
from psrl.activities.filters.verdict import Verdicts
from psrl.activities.orchestration.groups import GroupActivities
from psrl.activities.orchestration.lookout import LookoutActivities
from psrl.schemas.config import parse_config
from psrl.schemas.ids import (
    CPU_QUEUE,
    ORCHESTRATOR_QUEUE,
    TRAINER_QUEUE,
    GroupId,
    InstanceId,
    RunId,
    environments_queue,
    instance_id,
    rollout_queue,
    training_group,
    validation_group,
)
from psrl.schemas.messages.coordination import SyncAnswer, SyncRequest
from psrl.schemas.messages.data import (
    Admission,
    AdmitRequest,
    DrawRequest,
    DrawResult,
    DrawValidationRequest,
    KeptGroup,
    ReopenRun,
    Restored,
    RestoreRequest,
)
from psrl.schemas.messages.environments import CloseEnvironments, EnvironmentStep, StepEnvironment
from psrl.schemas.messages.episodes import TerminateReason
from psrl.schemas.messages.rewards import (
    GroupVerdict,
    Score,
    ScoredGroup,
    ScoredTrajectory,
    ScoreOutcome,
    ScoreRequest,
    ScoreResult,
)
from psrl.schemas.messages.rollout import (
    DispatchPlan,
    DispatchPlanRequest,
    DispatchRoom,
    EngineSpec,
    GenerateRequest,
    GenerateResult,
    Held,
    HoldRequest,
    InstanceCommand,
    PauseRequest,
    Placement,
    PullRequest,
    PullResult,
    RouteRequest,
    RouteResult,
    SegmentEnd,
    TurnRequest,
    TurnResult,
)
from psrl.schemas.messages.run import CollectedReports, CollectReports, EvaluationReport, RunStatus, StepReport
from psrl.schemas.messages.sessions import SessionRecord
from psrl.schemas.messages.training import (
    AdvantageStats,
    BatchInfo,
    BatchRequest,
    CheckpointRequest,
    CheckpointResult,
    LogProbStats,
    OpenTrainerRequest,
    PublishResult,
    StepRequest,
    UpdateStats,
)
from psrl.workers.rollout.calls import Calls
from psrl.workers.rollout.generate import InEngine
from psrl.workflows.rollout.evaluation import Evaluation
from psrl.workflows.rollout.group import RolloutGroup
from psrl.workflows.rollout.instance import RolloutInstance
from psrl.workflows.run.training_run import TrainingRun
from psrl.workflows.sessions.session import Session
from psrl.workflows.training.step import TrainStep

KEPT = environments_queue("scripted")
"""The queue of the process that keeps environments."""
WORKFLOWS = [TrainingRun, RolloutGroup, TrainStep, RolloutInstance, Evaluation, Session]


def minimal_config(**psrl: object) -> dict[str, object]:
    return {
        "model": {"path": "model"},
        "data": {"train_files": ["train.jsonl"], "max_response_length": 8},
        "reward": {"function": "module:reward"},
        "psrl": {
            "staleness_buffer_entries": 2,
            "rollout_n": 2,
            "staleness": 1,
            "deployment": {"n_rollout_instances": 2},
        }
        | psrl,
    }


class ScriptedParts:
    def __init__(self, instances: int = 2, prompts: int = 100, total_steps: int = 3) -> None:
        self.instances = [instance_id(number) for number in range(instances)]
        self.prompts, self.total_steps = prompts, total_steps
        self.validation_prompts = 4
        self.room_groups = 8
        self.admission: Admission | None = None
        self.versions: dict[InstanceId, int] = {}
        self.paused: set[InstanceId] = set()
        self.published: set[int] = set()
        self.tags: dict[GroupId, int] = {}
        self.places: dict[GroupId, int] = {}
        self.generated: list[TurnRequest] = []
        self.scored: dict[tuple[GroupId, int], float] = {}
        self.batches: dict[int, BatchRequest] = {}
        self.trained: dict[GroupId, int] = {}
        self.cancelled: dict[GroupId, str] = {}
        self.calls: list[str] = []
        self.sync_requests: list[SyncRequest] = []
        self.phases: list[str] = []
        self.steps: list[StepReport] = []
        self.evaluations: list[EvaluationReport] = []
        self.sessions: list[SessionRecord] = []
        self.engine_died = {instance: asyncio.Event() for instance in self.instances}
        self.gave_tokens = {instance: asyncio.Event() for instance in self.instances}
        self.generate_calls: list[GenerateRequest] = []
        self.stepped: list[tuple[str, StepEnvironment]] = []
        """With the queue that each step was asked for on."""
        self.closed: list[CloseEnvironments] = []
        self.hosts = {instance: ScriptedHost(self, instance) for instance in self.instances}

    # --- behaviour a test may replace --------------------------------------------------------------------------------

    async def on_generate(self, request: TurnRequest, instance: InstanceId) -> TurnResult:
        return self.finished(request, instance)

    async def on_score(self, group: GroupId, index: int) -> Score:
        return Score(index=index, outcome=ScoreOutcome.SCORED, reward=float(index % 2))

    async def on_step(self, request: StepEnvironment, queue: str) -> EnvironmentStep:
        return EnvironmentStep(ended=TerminateReason.FINISHED)

    async def on_update(self, request: StepRequest) -> None:
        """Called in the middle of an update."""

    async def on_publish(self, version: int) -> None:
        """Called before a version is published."""

    async def on_checkpoint(self, request: CheckpointRequest) -> None:
        """Called before a checkpoint is saved."""

    async def on_log_probs(self, request: StepRequest) -> None:
        """Called before log-probs are computed."""

    async def on_advantages(self, request: StepRequest) -> None:
        """Called before advantages are computed."""

    async def on_admit(self, request: AdmitRequest) -> None:
        """Called before admission."""

    async def on_start(self, instance: InstanceId) -> None:
        """Called before an engine is started."""

    async def on_pull(self, instance: InstanceId, version: int) -> None:
        """Called before a version is loaded."""

    async def on_hold(self, instance: InstanceId) -> None:
        """Called when an engine is held; returns when the lease is over."""
        await asyncio.Event().wait()

    async def on_sync_due(self, request: SyncRequest) -> SyncAnswer:
        """Returns when the instance may sync."""
        return SyncAnswer(due=True, reason="scripted")

    async def on_look(self, request: CollectReports) -> None:
        """Called when the run has been told what became of its parts."""

    async def die(self, instance: InstanceId) -> None:
        """Of a generation whose host dies without a word: later calls reach its successor."""
        self.hosts[instance].restart()
        await asyncio.Event().wait()

    def times_generated(self, group: GroupId, index: int) -> int:
        refs = [request.trajectory for request in self.generated]
        return sum((ref.group_id, ref.index) == (group, index) for ref in refs)

    def finished(self, request: TurnRequest, instance: InstanceId, tokens: int = 3) -> TurnResult:
        return TurnResult(
            index=request.trajectory.index,
            end=SegmentEnd.STOP,
            tokens=tokens,
            new_tokens=tokens,
            versions=(max(self.versions.get(instance, 0), 0),),
        )

    def interrupted(self, request: TurnRequest, tokens: int = 0) -> TurnResult:
        return TurnResult(index=request.trajectory.index, end=SegmentEnd.INTERRUPTED, tokens=tokens)

    # --- data and rewards --------------------------------------------------------------------------------------------

    @activity.defn(name="admit_run")
    async def admit_run(self, request: AdmitRequest) -> Admission:
        await self.on_admit(request)
        config = parse_config(request.config)
        self.admission = Admission(
            config=config.model_dump(mode="json"),
            total_steps=self.total_steps,
            prompts=self.prompts,
            skipped_too_long=0,
            validation_prompts=self.validation_prompts,
            data_fingerprint="f",
        )
        return self.admission

    @activity.defn(name="restore_run")
    async def restore_run(self, request: RestoreRequest) -> Restored:
        """From what this object recorded, as the real one from the store."""
        version = len(self.steps)
        batch = self.batches.get(version)
        gone = set(self.trained) | set(self.cancelled)
        scored = {group for group in self.tags if all((group, i) in self.scored for i in range(2))}
        unfinished = tuple(group for group in self.tags if group not in gone | scored)
        aborted = [group for group, reason in self.cancelled.items() if reason == "aborted"]
        assert self.admission is not None
        return Restored(
            admission=self.admission,
            version=version,
            batch=batch.taken if batch else (),
            kept=tuple(
                KeptGroup(group_id=group, version_tag=self.tags[group]) for group in self.tags if group in scored - gone
            ),
            unfinished=unfinished,
            redraw=tuple(sorted(self.places[group] for group in [*aborted, *unfinished])),
            next_place=max(self.places.values(), default=-1) + 1,
            next_group=len(self.tags),
        )

    @activity.defn(name="reopen_run")
    async def reopen_run(self, request: ReopenRun) -> None:
        self.phases.append("reopened")

    @activity.defn(name="draw_groups")
    async def draw_groups(self, request: DrawRequest) -> DrawResult:
        groups = tuple(training_group(request.first + i) for i in range(len(request.tags)))
        self.tags.update(zip(groups, request.tags, strict=True))
        self.places.update(zip(groups, request.places, strict=True))
        return DrawResult(groups=groups)

    @activity.defn(name="draw_validation")
    async def draw_validation(self, request: DrawValidationRequest) -> DrawResult:
        version = request.version
        return DrawResult(groups=tuple(validation_group(version, i) for i in range(self.validation_prompts)))

    @activity.defn(name="score")
    async def score(self, request: ScoreRequest) -> ScoreResult:
        scores = [await self.on_score(request.group_id, index) for index in request.indices]
        self.scored.update({(request.group_id, s.index): s.reward for s in scores if s.reward is not None})
        return ScoreResult(scores=tuple(scores), verdict=await self.verdict(request.group_id))

    async def verdict(self, group_id: GroupId) -> GroupVerdict | None:
        """As the real part gives it: of a complete group, when the run filters groups."""
        config = parse_config(self.admission.config) if self.admission else None
        members = [ScoredTrajectory(index=i, reward=r) for (group, i), r in self.scored.items() if group == group_id]
        if config is None or filter_name(config) is None or len(members) < config.psrl.rollout_n:
            return None
        group = ScoredGroup(group_id=group_id, trajectories=tuple(members[: config.psrl.rollout_n]))
        return await Verdicts().of("run", config, group)

    @activity.defn(name="step_environment")
    async def step_environment(self, request: StepEnvironment) -> EnvironmentStep:
        queue = activity.info().task_queue
        self.stepped.append((queue, request))
        return await self.on_step(request, queue)

    @activity.defn(name="close_environments")
    async def close_environments(self, request: CloseEnvironments) -> None:
        self.closed.append(request)

    # --- store and coordinator ---------------------------------------------------------------------------------------

    @activity.defn(name="plan_dispatch")
    async def plan_dispatch(self, request: DispatchPlanRequest) -> DispatchPlan:
        versions = {v for i, v in self.versions.items() if i not in self.paused}
        return DispatchPlan(rooms=tuple(DispatchRoom(version=v, groups=self.room_groups) for v in versions))

    @activity.defn(name="route")
    async def route(self, request: RouteRequest) -> RouteResult:
        able = [
            instance
            for instance, version in sorted(self.versions.items())
            if version >= request.version_tag and instance not in self.paused
        ]
        if not able:
            return RouteResult(placements=(), reason="nobody serves this version")
        if request.prefer in able:
            able = [request.prefer]
        return RouteResult(
            placements=tuple(
                Placement(index=i, instance=able[i % len(able)], version=self.versions[able[i % len(able)]])
                for i in request.indices
            )
        )

    @activity.defn(name="sync_due")
    async def sync_due(self, request: SyncRequest) -> SyncAnswer:
        self.sync_requests.append(request)
        return await self.on_sync_due(request)

    @activity.defn(name="make_batch")
    async def make_batch(self, request: BatchRequest) -> BatchInfo:
        known = self.batches.setdefault(request.buffer, request)
        assert known == request, "a buffer was asked for with other groups"
        for group in request.taken:
            assert self.trained.setdefault(group, request.buffer) == request.buffer, "a group was trained twice"
        ages = [request.buffer - self.tags[group] for group in request.taken]
        return BatchInfo(
            groups=len(request.taken),
            trajectories=2 * len(request.taken),
            tokens=6 * len(request.taken),
            staleness={age: ages.count(age) for age in set(ages)},
            reward_mean=0.5,
            reward_std=0.5,
            response_tokens_mean=3,
        )

    @activity.defn(name="record_step")
    async def record_step(self, request: StepReport) -> None:
        self.steps.append(request)

    @activity.defn(name="record_session")
    async def record_session(self, request: SessionRecord) -> None:
        self.sessions.append(request)

    @activity.defn(name="record_evaluation")
    async def record_evaluation(self, request: EvaluationReport) -> None:
        self.evaluations.append(request)

    @activity.defn(name="record_run")
    async def record_run(self, request: RunStatus) -> None:
        self.phases.append(request.phase.value)

    async def mark(self, run_id: RunId, groups: "tuple[GroupId, ...] | list[GroupId]", reason: str) -> None:
        self.cancelled.update(dict.fromkeys(groups, reason))

    # --- trainer -----------------------------------------------------------------------------------------------------

    @activity.defn(name="open_trainer")
    async def open_trainer(self, request: OpenTrainerRequest) -> PublishResult:
        await self.on_publish(0)
        self.published.add(0)
        return PublishResult(version=0, bytes=1, seconds=0)

    @activity.defn(name="compute_log_probs")
    async def compute_log_probs(self, request: StepRequest) -> LogProbStats:
        await self.on_log_probs(request)
        return LogProbStats(tokens=6, gap_mean_abs=0, gap_max_abs=0, gap_k3=0, untrainable_tokens=0, seconds=0)

    @activity.defn(name="compute_advantages")
    async def compute_advantages(self, request: StepRequest) -> AdvantageStats:
        await self.on_advantages(request)
        return AdvantageStats(mean=0, std=1, zero_share=0)

    @activity.defn(name="update")
    async def update(self, request: StepRequest) -> UpdateStats:
        await self.on_update(request)
        return UpdateStats(
            loss=0,
            grad_norm=0,
            clip_share=0,
            ratio_mean=1,
            kl=0,
            entropy=0,
            lr=0,
            is_weight_mean=1,
            optimizer_steps=1,
            seconds=0,
        )

    @activity.defn(name="publish")
    async def publish(self, request: StepRequest) -> PublishResult:
        await self.on_publish(request.buffer + 1)
        self.published.add(request.buffer + 1)
        return PublishResult(version=request.buffer + 1, bytes=1, seconds=0)

    @activity.defn(name="checkpoint")
    async def checkpoint(self, request: CheckpointRequest) -> CheckpointResult:
        await self.on_checkpoint(request)
        self.calls.append(f"checkpoint v{request.buffer + 1}" + (" complete" if request.wait else ""))
        return CheckpointResult(path="checkpoint", version=request.buffer + 1, seconds=0)

    @activity.defn(name="close_trainer")
    async def close_trainer(self, request: OpenTrainerRequest) -> None:
        self.calls.append("close_trainer")

    # --- workers -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def workers(
        self,
        client: Client,
        extra_workflows: Sequence[type] = (),
        without: Sequence[str] = (),
        **options: object,
    ) -> AsyncIterator[None]:
        """`without`: task queues that nobody serves."""
        groups, lookout = GroupActivities(client, self.mark, self.route), LookoutActivities(client)

        @activity.defn(name="collect_reports")
        async def collect_reports(request: CollectReports) -> CollectedReports:
            found = await lookout.collect_reports(request)
            await self.on_look(request)
            return found

        orchestration = [self.plan_dispatch, self.sync_due, self.route, self.make_batch, self.record_step]
        orchestration += [
            self.record_evaluation,
            self.record_run,
            self.reopen_run,
            self.record_session,
            groups.start_groups,
            groups.cancel_groups,
            groups.tell_run,
            collect_reports,
            lookout.look_at_run,
        ]
        trainer = [self.open_trainer, self.compute_log_probs, self.compute_advantages, self.update]
        trainer += [self.publish, self.checkpoint, self.close_trainer]
        cpu = [self.admit_run, self.restore_run, self.draw_groups, self.draw_validation, self.score]
        kept = [self.step_environment, self.close_environments]
        async with AsyncExitStack() as entered:
            for host in self.hosts.values():
                entered.push_async_callback(host.close)
            workers = [
                Worker(
                    client,
                    task_queue=ORCHESTRATOR_QUEUE,
                    workflows=[*WORKFLOWS, *extra_workflows],
                    activities=orchestration,
                    **options,  # type: ignore[arg-type]
                ),
                Worker(client, task_queue=TRAINER_QUEUE, activities=trainer),
                Worker(client, task_queue=CPU_QUEUE, activities=[*cpu, self.step_environment]),
                Worker(client, task_queue=KEPT, activities=kept),
                *(
                    Worker(client, task_queue=rollout_queue(name), activities=host.activities())
                    for name, host in self.hosts.items()
                ),
            ]
            for worker in workers:
                if worker.task_queue in without:
                    continue
                await entered.enter_async_context(worker)
            yield


class ScriptedGenerator:
    """The turns of one rollout instance."""

    def __init__(self, parts: ScriptedParts, name: InstanceId) -> None:
        self._parts, self._name = parts, name

    async def generate(self, request: TurnRequest, attempt: int, inside: InEngine) -> TurnResult:
        version = self._parts.versions[self._name]
        assert version >= request.version_tag, "a trajectory was sent to weights older than its tag"
        self._parts.generated.append(request)
        result = await self._parts.on_generate(request, self._name)
        self._parts.gave_tokens[self._name].set()
        return result


class ScriptedHost:
    """The activities of one rollout instance."""

    def __init__(self, parts: ScriptedParts, name: InstanceId) -> None:
        self._parts, self._name = parts, name
        self._processes: list[Calls] = []
        self.restart()

    def restart(self) -> None:
        self._calls = Calls(self._name, ScriptedGenerator(self._parts, self._name))
        self._processes.append(self._calls)

    async def close(self) -> None:
        for calls in self._processes:
            await calls.close()

    def activities(self) -> list[Callable[..., Awaitable[object]]]:
        return [
            self.start_engine,
            self.hold_engine,
            self.generate,
            self.pause,
            self.pull_weights,
            self.resume,
            self.release_engine,
        ]

    @activity.defn(name="start_engine")
    async def start_engine(self, request: EngineSpec) -> None:
        self._parts.calls.append(f"start {self._name}")
        await self._parts.on_start(self._name)
        self._parts.engine_died[self._name].clear()
        self._parts.gave_tokens[self._name].clear()

    @activity.defn(name="hold_engine")
    async def hold_engine(self, request: HoldRequest) -> Held:
        async def beat() -> None:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.2)

        died, gave = self._parts.engine_died[self._name], self._parts.gave_tokens[self._name]
        ends = [died.wait(), self._parts.on_hold(self._name), *([gave.wait()] if request.until_tokens else [])]
        waiting = [asyncio.create_task(end) for end in ends]
        beating = asyncio.create_task(beat())
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (beating, *waiting):
                task.cancel()
        if not died.is_set():
            return Held(tokens=int(gave.is_set()))
        self._parts.versions.pop(self._name, None)
        raise RuntimeError("the engine died")

    @activity.defn(name="generate")
    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """The real call over scripted turns."""
        self._parts.generate_calls.append(request)
        return await self._calls.open(request, activity.info().attempt).result()

    @activity.defn(name="pause")
    async def pause(self, request: PauseRequest) -> None:
        self._parts.paused.add(self._name)

    @activity.defn(name="pull_weights")
    async def pull_weights(self, request: PullRequest) -> PullResult:
        assert request.version in self._parts.published, "a version was pulled before it was published"
        await self._parts.on_pull(self._name, request.version)
        self._parts.versions[self._name] = request.version
        return PullResult(version=request.version, bytes=1, seconds_read=0, seconds_load=0, probe_max_abs_diff=0)

    @activity.defn(name="resume")
    async def resume(self, request: InstanceCommand) -> None:
        self._parts.paused.discard(self._name)

    @activity.defn(name="release_engine")
    async def release_engine(self, request: InstanceCommand) -> None:
        self._parts.versions.pop(self._name, None)
        self._parts.calls.append(f"release {self._name}")
