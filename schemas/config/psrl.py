"""`psrl.*`: staleness, group size, deployment and rollout coordination."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Self

from pydantic import Field, model_validator

from ..errors import nearest
from .agentic import AgenticSection
from .base import Section
from .routing import COST_MODEL_KEY, RoutingStrategy
from .sync_and_mig import SYNC_KEY, PartialRollout, SyncAndMigStrategy

GROUP_TIMEOUT_MAX_S = 5 * 3600
"""A group that never finds room asks for it every three seconds, at six events each: more would fill its history."""


class PsMode(StrEnum):
    """How weights travel from the trainer to the engines."""

    FILE = "file"
    """Memory-mapped files in a folder that trainer and engines share."""


class RedundantRollout(Section):
    enable: bool = False
    """Start more groups or trajectories than a batch needs and give up the slowest."""
    redundant_global_batch_size: int | None = Field(default=None, ge=1)
    """Groups offered per buffer (B' >= psrl.staleness_buffer_entries). Default: no redundancy."""
    redundant_rollout_n: int | None = Field(default=None, ge=1)
    """Trajectories started per group (N' >= psrl.rollout_n). Default: no redundancy."""

    refused: ClassVar[Mapping[str, str]] = {
        "alg_global_batch_size": "psrl.staleness_buffer_entries says it",
        "alg_rollout_n": "psrl.rollout_n says it",
    }


class ContinueScope(StrEnum):
    """Where a hung session may continue."""

    BUCKETED = "bucketed"
    """On the instance that it was on."""
    GLOBAL = "global"
    """On whichever has room."""


class ThunderAgent(Section):
    enable: bool = False
    """Hang sessions, at the end of their turn, while an instance holds more of them than its KV cache has room for, and
    let them continue as room comes free. One that no instance could ever hold is closed with that reason."""
    check_interval_in_ms: int = Field(default=1000, ge=100)
    """How often it is looked at."""
    env_token_weight: float = Field(default=1.0, ge=0)
    """How much the tokens of a session count while its agent is at work and no turn is in flight."""
    buffer_per_session: int = Field(default=100, ge=0)
    """Tokens kept free for each session's next turn."""
    continue_scope: ContinueScope = ContinueScope.BUCKETED
    continue_force_pin: bool = False
    """The next turn of a session that continues begins on the instance that was chosen, if it has room, once. Without,
    it begins where the last one was, whenever that has room."""


class SessionStrategy(Section):
    thunder_agent: ThunderAgent = ThunderAgent()


class RolloutCoordination(Section):
    partial_rollout: PartialRollout = PartialRollout()
    redundant_rollout: RedundantRollout = RedundantRollout()
    routing_strategy: RoutingStrategy = RoutingStrategy()
    sync_and_mig_strategy: SyncAndMigStrategy = SyncAndMigStrategy()
    session_strategy: SessionStrategy = SessionStrategy()

    refused: ClassVar[Mapping[str, str]] = {
        "proactive_filter_strategy": "not supported yet, the last groups of a batch are neither cut nor repeated",
    }

    @model_validator(mode="after")
    def _moved_requests_continue(self) -> Self:
        if self.sync_and_mig_strategy.mig.enable and not self.partial_rollout.enable:
            raise ValueError(
                "psrl.rollout_coordination.sync_and_mig_strategy.mig.enable=true interrupts requests, which "
                "psrl.rollout_coordination.partial_rollout.enable=false forbids; allowed: one of them changed"
            )
        return self

    @model_validator(mode="after")
    def _moved_requests_stay_where_they_went(self) -> Self:
        """Else each is routed back to its group, and moved again."""
        if self.sync_and_mig_strategy.mig.enable and self.routing_strategy.enable_group_sticky:
            raise ValueError(
                "psrl.rollout_coordination.sync_and_mig_strategy.mig.enable=true moves requests away from the instance "
                "of their group, where psrl.rollout_coordination.routing_strategy.enable_group_sticky=true keeps them; "
                "allowed: one of them changed"
            )
        return self

    @model_validator(mode="after")
    def _estimates_need_a_cost_model(self) -> Self:
        """But for a sync that waits for the engine to be idle: there is nothing to estimate."""
        estimates = self.sync_and_mig_strategy.estimates and self.partial_rollout.enable
        if estimates and not self.routing_strategy.cost_model_path:
            raise ValueError(
                f"{COST_MODEL_KEY}=null with {SYNC_KEY}.sync.indicator=hypothesis_test; allowed: the path of a file "
                "that `psrl calibrate` has written"
            )
        return self


class StatsRecorder(Section):
    enable: bool = True
    """The coordinator records what each instance reports, and the requests that wait: JSON lines in `status/RUN` of the
    stack's home."""
    interval_in_s: float = Field(default=1.0, ge=0.1)
    """Between two lines of one instance."""


class StatusCollection(Section):
    stats_recorder: StatsRecorder = StatsRecorder()

    refused: ClassVar[Mapping[str, str]] = {
        "enable": "instances always report: no request is routed to one that does not",
        "dump_logging_to_file_level": "stats_recorder records what is reported; logs are per process",
        "dump_logging_to_file_interval_in_ms": "stats_recorder.interval_in_s says how often a status is recorded",
        "engine_sync_interval_in_ms": "an instance reports several times a second, and at once when its state changes",
        "coordinator_sync_interval_in_ms": "the coordinator routes by each report as it comes",
    }


class Deployment(Section):
    n_rollout_instances: int = Field(default=1, ge=1)
    """Number of rollout engines the run uses."""
    start_timeout_s: float = Field(default=300, gt=0)
    """How long a part may take to come up before the run fails and names it; also how long an instance waits for
    another run to give its engine back."""
    restart_budget: int = Field(default=5, ge=0)
    """Times an instance's engine is restarted before the instance is quarantined. A quarantined instance is retried
    after 30 s, then at intervals that double up to 10 minutes, and serves again once a retry succeeds."""
    restart_budget_heals_s: float = Field(default=600, gt=0)
    """An instance that has served this long without a failure gets its whole restart budget back."""
    no_instance_timeout_s: float = Field(default=600, ge=0)
    """The run fails once every instance has been quarantined for this long since its engine last produced tokens. Time
    in which an instance served but had no requests does not count."""

    refused: ClassVar[Mapping[str, str]] = {
        "elastic_rm": "not supported yet, no instance is shared between rollout and a reward model",
    }


class GroupFilterName(StrEnum):
    """Built-in group filters."""

    DYNAMIC_SAMPLING = "dynamic_sampling_filter"
    """Drop a group in which `algorithm.filter_groups.metric` is the same for all: it carries no gradient."""
    NO_FILTER = "no_filter"
    """Keep every group."""


class GroupPostProcess(Section):
    enable: bool = False
    """Filter complete groups before they occupy their slot. One fresh prompt replaces each group that is dropped."""
    name: str | None = None
    """Which filter; required when enabled. `dynamic_sampling_filter`: drop a group in which
    `algorithm.filter_groups.metric` is the same for all trajectories, as it carries no gradient. `no_filter`: keep
    every group. Or an import path `package.module:function`, sync or async: it gets the group, and returns None to keep
    it or the reason to drop it, within the limits of a reward (`reward.timeout_s`, `reward.max_attempts`,
    `reward.max_concurrency`)."""
    max_consecutive_drops: int = Field(default=512, ge=1)
    """Filtered groups in a row after which the run stops and names the data: filtering everything is a fault
    of the task, not bad luck."""

    @property
    def is_plug_in(self) -> bool:
        """The filter is the user's own code."""
        return self.name is not None and ":" in self.name

    @model_validator(mode="after")
    def _names_a_filter(self) -> Self:
        known = [name.value for name in GroupFilterName]
        allowed = f"allowed: {', '.join(known)}, or package.module:function"
        if self.enable and self.name is None:
            raise ValueError(f"psrl.group_post_process.name=null while enabled; {allowed}")
        if self.name is not None and self.name not in known and not self.is_plug_in:
            guess = nearest(self.name, known)
            raise ValueError(f"psrl.group_post_process.name={self.name!r} is not a filter{guess}; {allowed}")
        return self


MAX_LIVE_GROUPS = 10_000
"""A run carries its live groups from execution to execution in one payload, of which Temporal takes 2 MB at most: each
costs about 50 bytes there, and about 100 where an ended run is taken up again."""


class PsrlSection(Section):
    staleness: int = Field(default=0, ge=0)
    """eta: a group tagged V may be trained in buffers V..V+eta. 0 is fully synchronous."""
    staleness_buffer_entries: int = Field(default=512, ge=1)
    """B: groups (prompts) per training batch."""
    rollout_n: int = Field(default=1, ge=1)
    """N: trajectories per group."""
    flush_tokens: int = Field(default=256, ge=1)
    """Tokens of one generation that may be lost to a crash: segments are stored at least this often."""
    flush_interval_s: float = Field(default=2.0, gt=0)
    """Seconds between two stored segments of one generation, at most."""
    group_timeout_s: float = Field(default=3600, gt=0, le=GROUP_TIMEOUT_MAX_S)
    """Deadline of one group from start to report, counted while the stack is up; past it the group is given up and one
    fresh prompt replaces it."""
    ps_mode: PsMode = PsMode.FILE
    deployment: Deployment = Deployment()
    rollout_coordination: RolloutCoordination = RolloutCoordination()
    status_collection: StatusCollection = StatusCollection()
    group_post_process: GroupPostProcess = GroupPostProcess()
    agentic_rl: AgenticSection = AgenticSection()

    @property
    def offered_groups(self) -> int:
        """B': groups offered per buffer."""
        extra = self.rollout_coordination.redundant_rollout
        return (extra.redundant_global_batch_size if extra.enable else None) or self.staleness_buffer_entries

    @property
    def offered_trajectories(self) -> int:
        """N': trajectories started per group."""
        extra = self.rollout_coordination.redundant_rollout
        return (extra.redundant_rollout_n if extra.enable else None) or self.rollout_n

    @model_validator(mode="after")
    def _live_groups_fit_a_payload(self) -> Self:
        if (live := (self.staleness + 1) * self.offered_groups) > MAX_LIVE_GROUPS:
            raise ValueError(
                f"psrl.staleness={self.staleness} with {self.offered_groups} groups offered per buffer may hold {live} "
                f"groups at once; allowed: (staleness + 1) * groups up to {MAX_LIVE_GROUPS}"
            )
        return self

    @model_validator(mode="after")
    def _redundancy_only_adds(self) -> Self:
        path = "psrl.rollout_coordination.redundant_rollout"
        if self.offered_groups < self.staleness_buffer_entries:
            raise ValueError(
                f"{path}.redundant_global_batch_size={self.offered_groups} is below "
                f"psrl.staleness_buffer_entries={self.staleness_buffer_entries}; allowed: that or more"
            )
        if self.offered_trajectories < self.rollout_n:
            raise ValueError(
                f"{path}.redundant_rollout_n={self.offered_trajectories} is below "
                f"psrl.rollout_n={self.rollout_n}; allowed: that or more"
            )
        return self
