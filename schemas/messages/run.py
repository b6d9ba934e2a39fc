"""Messages of the run, its groups, steps, instances and evaluations: inputs, reports, signals, query answers."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from ..config import RolloutSection, RoutingStrategy, RunConfig
from ..config.agentic import AgentLoop
from ..config.rollout import ValSampling
from ..config.sync_and_mig import SyncAndMigStrategy, SyncMode
from ..ids import GroupId, InstanceId, RunId
from .base import Message
from .rollout import EngineSpec, InstanceState, Placement, Sampling, Strategy
from .training import AdvantageStats, BatchInfo, LogProbStats, PublishResult, UpdateStats

STEP_MARGIN_S = 60
"""For what a step does besides: reading, rendering, storing; once also loading a parser."""


class RunPhase(StrEnum):
    """Life of a run."""

    ADMITTING = "admitting"
    """Configuration, data, model and reward are checked."""
    STARTING = "starting"
    """Trainer and instances load the initial weights."""
    RUNNING = "running"
    """Groups are generated and trained on."""
    PAUSED = "paused"
    """No new group starts and no new step begins, until `resume`."""
    STOPPING = "stopping"
    """The step in progress finishes; live groups are given up."""
    DONE = "done"
    """Every step was trained."""
    STOPPED = "stopped"
    """Ended early on request; `resume` starts from here."""
    FAILED = "failed"
    """Ended by an error; `reason` says which. `resume` starts from here once that is fixed."""


class StartRun(Message):
    """Input of the `TrainingRun` workflow as people write it: `{"config": {...}}` for a new run, `{"resume": true}` for
    one that was stopped or failed. The workflow id is the run id."""

    config: dict[str, Any] = {}
    """Of a new run. A resumed one keeps the configuration it was admitted with."""
    resume: bool = False
    accept_changed_data: bool = False
    """With `resume`: do so although the data files have changed."""
    carried: dict[str, Any] | None = None
    """`RunState` of the execution that continued as this one; people leave it out."""


class StopRun(Message):
    """Signal `stop`. Both ways leave a state that `resume` starts from."""

    now: bool = False
    """Abandon the step in progress; its batch is kept and trained first after `resume`. False: finish it."""


class Wait(Message):
    """Something a run waits for now (L11)."""

    what: str
    owner: str
    """Who ends the wait."""
    since: datetime
    deadline: datetime | None = None
    """When the owner is given up on; null: a person decides."""
    otherwise: str = ""
    """What happens at the deadline."""


class GroupOutcome(StrEnum):
    """What a group reports to its run."""

    COMPLETE = "complete"
    """N trajectories are finished and scored: occupy."""
    FILTERED = "filtered"
    """The group filter dropped it: release, one fresh prompt."""
    FAILED = "failed"
    """Fewer than N trajectories could be finished: release, one fresh prompt."""
    ABORTED = "aborted"
    """The run gave it up: nothing more to do."""


class GroupReport(Message):
    """What a group tells its run, once; a repeated report is ignored."""

    group_id: GroupId
    outcome: GroupOutcome
    reward_mean: float | None = None
    tokens: int = 0
    segments: int = 0
    reason: str = ""


class GroupReports(Message):
    """Signal `group_reports` to a run: of groups that ended at about the same time."""

    reports: tuple[GroupReport, ...]


class TellRun(Message):
    """Input of the activity that hands a group's report to its run. A repeated call repeats the signal: harmless."""

    run_workflow_id: str
    report: GroupReport


class TurnLimits(Message):
    """Of trajectories in which an environment answers each turn."""

    attempt_s: float
    """Of one attempt at a step, the environment made anew included."""
    trajectory_s: float | None = None
    """Of a trajectory, from the start of its group; null: as long as its group."""

    @classmethod
    def of(cls, config: RunConfig) -> Self | None:
        agentic = config.psrl.agentic_rl
        if agentic.agent_loop is not AgentLoop.MULTI_TURN:
            return None
        # An environment that was lost is reset, and every earlier step may be repeated, before the step itself.
        calls = (agentic.max_turns + 2) * agentic.step_max_attempts
        return cls(attempt_s=calls * agentic.step_timeout_s + STEP_MARGIN_S, trajectory_s=agentic.trajectory_timeout_s)


class RolloutSettings(Message):
    """How groups are played: the same for every group of a run, and for every prompt of its validation rounds."""

    sampling: Sampling
    seed: int
    """Of the run; every trajectory samples with a seed of its own that is derived from it."""
    needed: int
    """N: trajectories that complete a group."""
    offered: int
    """N': trajectories started."""
    timeout_s: float
    """Deadline of one group."""
    reward_timeout_s: float
    coalesce_rewards: bool
    """One call scores what completes the group; else each trajectory is scored when it has finished."""
    strategy: Strategy = RoutingStrategy()
    one_version: bool = False
    """As in `TurnRequest`."""
    agent_loop: AgentLoop = AgentLoop.GENERATE_ONLY
    """Who plays an episode."""
    attempts: int = 1
    """At an episode whose agent fails."""
    turns: TurnLimits | None = None
    """Null: one turn, which nobody answers."""

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """For training groups."""
        psrl = config.psrl
        return cls(
            sampling=cls._sampling(config.rollout, config),
            needed=psrl.rollout_n,
            offered=psrl.offered_trajectories,
            coalesce_rewards=config.reward.coalesce or config.reward.waits_for_group,
            one_version=not psrl.rollout_coordination.partial_rollout.enable,
            **cls._shared(config),
        )

    @classmethod
    def of_validation(cls, config: RunConfig) -> Self:
        val = config.rollout.val
        return cls(
            sampling=cls._sampling(val, config),
            needed=val.n,
            offered=val.n,
            coalesce_rewards=True,
            **cls._shared(config),
        )

    @staticmethod
    def _sampling(section: RolloutSection | ValSampling, config: RunConfig) -> Sampling:
        of_turn = config.psrl.agentic_rl.max_turn_tokens
        return Sampling(
            temperature=section.temperature,
            top_p=section.top_p,
            top_k=section.top_k,
            max_tokens=min(config.data.max_response_length, of_turn or config.data.max_response_length),
        )

    @staticmethod
    def _shared(config: RunConfig) -> dict[str, Any]:
        return {
            "seed": config.trainer.seed,
            "timeout_s": config.psrl.group_timeout_s,
            "reward_timeout_s": config.scoring_timeout_s,
            "strategy": config.psrl.rollout_coordination.routing_strategy,
            "agent_loop": config.psrl.agentic_rl.agent_loop,
            "attempts": config.psrl.agentic_rl.retry_limit + 1,
            "turns": TurnLimits.of(config),
        }


class StartGroup(Message):
    """Input of `RolloutGroup`."""

    run_id: RunId
    group_id: GroupId
    run_workflow_id: str
    version_tag: int
    rollout: RolloutSettings
    placements: tuple[Placement, ...] = ()
    """Where its trajectories begin, as far as the starter found room: what is missing, the group asks for itself."""


class StartGroups(Message):
    """Input of the activity that starts a wave of group workflows. Idempotent: a running group is left alone."""

    template: StartGroup
    """With an empty group id."""
    groups: tuple[GroupId, ...]


class CancelGroups(Message):
    """Cancel group workflows that still run and mark the groups' rows with the reason. Idempotent."""

    run_id: RunId
    groups: tuple[GroupId, ...]
    reason: str


class CollectReports(Message):
    """Ask what became of the workflows a run waits on: groups that have not reported, instances, validation rounds."""

    run_id: RunId
    groups: tuple[GroupId, ...]
    instances: tuple[InstanceId, ...] = ()
    evaluations: tuple[int, ...] = ()
    """Versions of validation rounds that have not reported."""


class EndedInstance(Message):
    """An instance whose workflow is closed."""

    instance: InstanceId
    stopped: bool
    """It gave its engine back and completed. False: it failed, was terminated or timed out, or is not known."""
    reason: str


class EvaluationReport(Message):
    """Result of `Evaluation`, and signal `evaluation_report` to the run."""

    run_id: RunId
    version: int
    accuracy: float | None
    """Mean reward over scored answers; null when none was scored."""
    scored: int
    failed: int


class EndedEvaluation(Message):
    """A validation round whose workflow is closed."""

    version: int
    report: EvaluationReport | None
    """What it found; null when it ended without a result."""
    reason: str = ""


class CollectedReports(Message):
    """Only of what has ended; a workflow that still runs is not in it."""

    reports: tuple[GroupReport, ...]
    instances: tuple[EndedInstance, ...] = ()
    evaluations: tuple[EndedEvaluation, ...] = ()


class StartStep(Message):
    """Input of `TrainStep`."""

    run_id: RunId
    buffer: int
    taken: tuple[GroupId, ...]
    dropped: tuple[GroupId, ...]
    checkpoint: bool
    waited_s: float
    """How long the trainer waited for this buffer, by workflow time."""
    queue_depth: int = 0
    """Complete groups at the moment the buffer was consumed, those of its batch included."""


class StepHeld(Message):
    """Signal `step_held` from a step to its run: a stage waits for something that people must provide."""

    buffer: int
    reason: str
    """What is missing, for people; empty when the step continues."""


class StepReport(Message):
    """Result of `TrainStep`, and input of `record_step`."""

    run_id: RunId
    buffer: int
    waited_s: float
    """How long the trainer waited for this buffer, by workflow time."""
    queue_depth: int = 0
    """As in `StartStep`."""
    train_started_at: datetime
    """Workflow time at which the first trainer stage was scheduled."""
    published_at: datetime
    batch: BatchInfo
    log_probs: LogProbStats
    advantages: AdvantageStats
    update: UpdateStats
    publish: PublishResult


class EngineRecord(Message):
    """How one engine has done so far. Times are workflow times."""

    failures: int = 0
    """That count against the restart budget."""
    quarantined_at: float | None = None
    """Null while it is not quarantined."""
    in_vain_s: float = 0.0
    """In earlier quarantines since the engine was last of use."""
    serves_since: float | None = None
    """When it began to serve after its latest failure."""


class StartInstance(Message):
    """Input of `RolloutInstance`."""

    run_workflow_id: str
    instance: InstanceId
    spec: EngineSpec
    version: int
    interrupt: bool
    """At a sync; false: what it runs finishes first."""
    strategy: SyncAndMigStrategy | None = None
    """When it syncs; null: as soon as it can."""
    start_timeout_s: float
    restart_budget: int = 5
    restart_budget_heals_s: float = 600.0
    record: EngineRecord = EngineRecord()
    """Carried over continue-as-new."""

    @property
    def mode(self) -> SyncMode:
        return SyncMode.INTERRUPT if self.interrupt else SyncMode.DRAIN


class LookAtRun(Message):
    """Input of the activity by which an instance asks whether its run is still there."""

    run_workflow_id: str


class LookedAtRun(Message):
    open: bool
    """False: nobody will ever ask for anything again."""


class InstanceChanged(Message):
    """Signal `instance_changed` from an instance to its run."""

    instance: InstanceId
    state: InstanceState
    version: int
    reason: str = ""
    quarantined_s: float = 0.0
    """For how long it has been quarantined since the engine last gave tokens, the failure that this message reports
    included; 0 while it is not."""


class Answered(Message):
    """Of a validation round, by earlier executions of its workflow."""

    left: tuple[GroupId, ...]
    """Prompts that are still to be answered."""
    scored: int
    failed: int
    reward_sum: float


class StartEvaluation(Message):
    """Input of `Evaluation`."""

    run_id: RunId
    run_workflow_id: str
    version: int
    concurrency: int
    """Prompts answered at the same time: a round does not crowd out training."""
    rollout: RolloutSettings
    answered: Answered | None = None
    """Null at the beginning."""


class RunStatus(Message):
    """Answer of query `status`."""

    run_id: RunId
    phase: RunPhase
    reason: str = ""
    notice: str = ""
    """A request that was not heeded, and why: what people should know although nothing failed."""
    notes: tuple[str, ...] = ()
    """What people should know of their data although the run was admitted."""
    step: int
    """Steps finished so far."""
    total_steps: int
    version: int
    live_groups: int
    occupied_groups: int
    reward_mean: float | None = None
    validation_accuracy: float | None = None
    waiting_for: str = ""
    """The first of `waits`, in one line."""
    waits: tuple[Wait, ...] = ()
    instances: dict[str, str] = {}
    dropped: dict[str, int] = {}
    """Groups that were given up, by reason."""


class RunResult(Message):
    """Result of `TrainingRun`."""

    phase: RunPhase
    steps: int
    version: int
    reward_last: float | None
    checkpoint: str = ""
