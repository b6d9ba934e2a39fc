"""Names and types of every activity, for the workflows. Implementations live in the capability folders.

Importing this module loads nothing heavy: it is what the workflow sandbox sees of the activities.
"""

from temporalio import activity

from ..schemas.messages.agents import AgentRun, RunAgent
from ..schemas.messages.coordination import SyncAnswer, SyncRequest
from ..schemas.messages.data import (
    Admission,
    AdmitRequest,
    DrawRequest,
    DrawResult,
    DrawValidationRequest,
    ReopenRun,
    Restored,
    RestoreRequest,
)
from ..schemas.messages.environments import CloseEnvironments, EnvironmentStep, StepEnvironment
from ..schemas.messages.rewards import ScoreRequest, ScoreResult
from ..schemas.messages.rollout import (
    DispatchPlan,
    DispatchPlanRequest,
    EngineSpec,
    GenerateRequest,
    GenerateResult,
    Held,
    HoldRequest,
    InstanceCommand,
    PauseRequest,
    PullRequest,
    PullResult,
    RouteRequest,
    RouteResult,
)
from ..schemas.messages.run import (
    CancelGroups,
    CollectedReports,
    CollectReports,
    EvaluationReport,
    LookAtRun,
    LookedAtRun,
    RunStatus,
    StartGroups,
    StepReport,
    TellRun,
)
from ..schemas.messages.sessions import SessionRecord
from ..schemas.messages.training import (
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

# --- data, rewards and environments: CPU_QUEUE -----------------------------------------------------------------------


@activity.defn
async def admit_run(request: AdmitRequest) -> Admission:
    """Validate configuration, data, model directory and reward; create the run's row."""
    raise NotImplementedError


@activity.defn
async def restore_run(request: RestoreRequest) -> Restored:
    """Find out from the store where an ended run resumes."""
    raise NotImplementedError


@activity.defn
async def draw_groups(request: DrawRequest) -> DrawResult:
    """Write the next training groups, with their trajectory rows."""
    raise NotImplementedError


@activity.defn
async def draw_validation(request: DrawValidationRequest) -> DrawResult:
    """Write one validation round's groups, with their trajectory rows."""
    raise NotImplementedError


@activity.defn
async def score(request: ScoreRequest) -> ScoreResult:
    """Score finished trajectories and store the rewards."""
    raise NotImplementedError


@activity.defn
async def step_environment(request: StepEnvironment) -> EnvironmentStep:
    """Let the environment answer a turn; store what it says, and what comes of it."""
    raise NotImplementedError


@activity.defn
async def close_environments(request: CloseEnvironments) -> None:
    """Close environments of trajectories that nobody needs any more."""
    raise NotImplementedError


# --- agents from outside: AGENT_QUEUE ---------------------------------------------------------------------------------


@activity.defn
async def run_agent(request: RunAgent) -> AgentRun:
    """Let an agent play one episode against a session of its own, to its end; the session is closed."""
    raise NotImplementedError


# --- store and coordinator: ORCHESTRATOR_QUEUE -----------------------------------------------------------------------


@activity.defn
async def sync_due(request: SyncRequest) -> SyncAnswer:
    """Return when an instance that is behind may sync."""
    raise NotImplementedError


@activity.defn
async def plan_dispatch(request: DispatchPlanRequest) -> DispatchPlan:
    """Ask the coordinator how many groups may start, at which versions."""
    raise NotImplementedError


@activity.defn
async def route(request: RouteRequest) -> RouteResult:
    """Ask the coordinator where trajectories shall generate. Local activity."""
    raise NotImplementedError


@activity.defn
async def start_groups(request: StartGroups) -> None:
    """Start a wave of `RolloutGroup` workflows."""
    raise NotImplementedError


@activity.defn
async def cancel_groups(request: CancelGroups) -> None:
    """Cancel live group workflows and mark their rows."""
    raise NotImplementedError


@activity.defn
async def collect_reports(request: CollectReports) -> CollectedReports:
    """What has become of groups, instances and validation rounds that the run waits on."""
    raise NotImplementedError


@activity.defn
async def look_at_run(request: LookAtRun) -> LookedAtRun:
    """Whether a run's workflow is still open."""
    raise NotImplementedError


@activity.defn
async def tell_run(request: TellRun) -> None:
    """Signal a group's report to its run. Local activity."""
    raise NotImplementedError


@activity.defn
async def make_batch(request: BatchRequest) -> BatchInfo:
    """Record the members of a buffer; refuses a trajectory that is in another batch or breaks the bound."""
    raise NotImplementedError


@activity.defn
async def record_step(request: StepReport) -> None:
    """Store the metrics of a finished step."""
    raise NotImplementedError


@activity.defn
async def record_evaluation(request: EvaluationReport) -> None:
    """Store the result of a validation round."""
    raise NotImplementedError


@activity.defn
async def record_session(request: SessionRecord) -> None:
    """Store a session's status and reason."""
    raise NotImplementedError


@activity.defn
async def record_run(request: RunStatus) -> None:
    """Store the run's phase and reason."""
    raise NotImplementedError


@activity.defn
async def reopen_run(request: ReopenRun) -> None:
    """Record that an ended run is resumed."""
    raise NotImplementedError


# --- one instance's host: rollout_queue(instance) --------------------------------------------------------------------


@activity.defn
async def start_engine(request: EngineSpec) -> None:
    """Start the engine for a run, weights not yet trusted. Idempotent for the same spec."""
    raise NotImplementedError


@activity.defn
async def hold_engine(request: HoldRequest) -> Held:
    """Heartbeat while the engine lives; fails when it dies. Cancelled when the run gives the instance back."""
    raise NotImplementedError


@activity.defn
async def generate(request: GenerateRequest) -> GenerateResult:
    """Produce turns of one group, side by side; segments are stored as they come."""
    raise NotImplementedError


@activity.defn
async def pause(request: PauseRequest) -> None:
    """Admit nothing new; interrupt or drain what runs."""
    raise NotImplementedError


@activity.defn
async def pull_weights(request: PullRequest) -> PullResult:
    """Read, verify, load and probe one version. The engine must be paused and stays so."""
    raise NotImplementedError


@activity.defn
async def resume(request: InstanceCommand) -> None:
    """Admit requests again."""
    raise NotImplementedError


@activity.defn
async def release_engine(request: InstanceCommand) -> None:
    """Shut the engine down and give the instance back. Idempotent."""
    raise NotImplementedError


# --- the trainer: TRAINER_QUEUE --------------------------------------------------------------------------------------


@activity.defn
async def open_trainer(request: OpenTrainerRequest) -> PublishResult:
    """Load model and optimizer; publish version 0."""
    raise NotImplementedError


@activity.defn
async def compute_log_probs(request: StepRequest) -> LogProbStats:
    """Recompute old log-probs of the batch and measure the gap to the engine's."""
    raise NotImplementedError


@activity.defn
async def compute_advantages(request: StepRequest) -> AdvantageStats:
    """Turn the batch's rewards into advantages, by the run's estimator."""
    raise NotImplementedError


@activity.defn
async def update(request: StepRequest) -> UpdateStats:
    """Optimizer steps over the batch."""
    raise NotImplementedError


@activity.defn
async def publish(request: StepRequest) -> PublishResult:
    """Publish version `buffer + 1`."""
    raise NotImplementedError


@activity.defn
async def checkpoint(request: CheckpointRequest) -> CheckpointResult:
    """Save the state of version `buffer + 1`, atomically. Writes beside the next step unless asked to wait."""
    raise NotImplementedError


@activity.defn
async def close_trainer(request: OpenTrainerRequest) -> None:
    """Free the trainer for the next run. Idempotent."""
    raise NotImplementedError
