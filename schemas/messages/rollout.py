"""Messages of generation, routing and the control of rollout instances."""

from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from ..config import ModelSection, RolloutSection, RoutingStrategy, RunConfig
from ..config.sync_and_mig import Migration
from ..cost_model import CostModel
from ..ids import GroupId, InstanceId, RunId
from .base import Message, Said


class SegmentEnd(StrEnum):
    """Why the engine stopped producing tokens of a turn."""

    STOP = "stop"
    """A stop token was sampled: the turn is complete."""
    LENGTH = "length"
    """The token budget is used up: the turn is complete."""
    INTERRUPTED = "interrupted"
    """A weight sync or a drain ended the segment; its tokens are stored, the turn continues elsewhere."""


class TrajectoryRef(Message):
    """One trajectory of one group of one run."""

    run_id: RunId
    group_id: GroupId
    index: int


class Sampling(Message):
    """How a turn samples; fixed for the whole turn, also after an interruption."""

    temperature: float
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int
    """Tokens of the whole turn; a continuation gets what is left."""
    seed: int | None = None


@lru_cache(maxsize=256)
def _strategy(text: str) -> RoutingStrategy:
    return RoutingStrategy.model_validate_json(text)


def _read(value: Any) -> Any:
    return _strategy(value) if isinstance(value, str) else value


Strategy = Annotated[
    RoutingStrategy,
    BeforeValidator(_read),
    PlainSerializer(lambda value: value.model_dump_json(exclude_defaults=True), return_type=str),
]
"""How a run routes, in each of its requests: the coordinator remembers nothing of a run. It crosses as JSON text of
what differs from the defaults, since it is in the history of every group."""


class RouteRequest(Message):
    """Place trajectories on instances. All trajectories of one call belong to one group."""

    run_id: RunId
    group_id: GroupId
    indices: tuple[int, ...]
    version_tag: int
    """Only instances that serve this version or a newer one are candidates."""
    wait_s: float = 2.0
    """How long the coordinator may hold the call until some instance has room."""
    strategy: Strategy = RoutingStrategy()
    prefer: InstanceId | None = None
    """Chosen while it has room and the method does not refuse it: it has the KV cache of what came before."""
    tokens: tuple[int, ...] = ()
    """Of each index: its context so far. Empty where the strategy does not look at lengths or tokens."""
    sampled: tuple[int, ...] = ()
    """Of each index: how many of `tokens` the turn has sampled that is to be continued."""
    blocks: tuple[int, ...] = ()
    """Of the context that all indices have in common, block by block, a number that stands for the tokens up to the
    block's end. Empty where the strategy does not look at tokens."""

    @model_validator(mode="after")
    def _one_length_each(self) -> Self:
        """The coordinator would stumble over it with every report, for all that wait."""
        if any(lengths and len(lengths) != len(self.indices) for lengths in (self.tokens, self.sampled)):
            raise ValueError(f"{len(self.tokens)} and {len(self.sampled)} lengths for {len(self.indices)} indices")
        return self


class Placement(Message):
    index: int
    instance: InstanceId
    version: int
    """The version the instance served when it was chosen."""


class RouteResult(Message):
    placements: tuple[Placement, ...]
    """May be shorter than what was asked: the rest found no room in time."""
    reason: str = ""
    """Why some found no room, for people."""


class DispatchRoom(Message):
    """Room for new groups at one version."""

    version: int
    groups: int


class DispatchPlanRequest(Message):
    run_id: RunId
    trajectories_per_group: int
    admits: tuple[DispatchRoom, ...] = ()
    """Groups that the run's ledger would admit now, by tag."""
    strategy: Strategy = RoutingStrategy()
    """By which the groups' requests will be routed: what it would refuse is no room."""


class DispatchPlan(Message):
    """How many new groups may start now, by the version whose instances have the room. Newest first."""

    rooms: tuple[DispatchRoom, ...]
    reason: str = ""


class TurnRequest(Message):
    """One turn of one trajectory, begun or continued. The prompt, and tokens that earlier calls produced, are in the
    store."""

    trajectory: TrajectoryRef
    turn: int = 0
    call: int = 0
    """Number of this call within the trajectory; with the activity's attempt it forms the fencing number."""
    version_tag: int
    sampling: Sampling
    one_version: bool = False
    """A turn that another version began is begun anew from its prompt: no trajectory mixes versions. Its lost tokens
    are the price of `partial_rollout.enable=false`."""
    conversation: bool = False
    """The trajectory is a branch of a session: its context is what its turns hold, and those of the branch it left."""


class CalledTurn(Message):
    """What distinguishes one turn of a generate call from the others."""

    index: int
    turn: int = 0
    call: int = 0
    """As in `TurnRequest`."""
    seed: int | None = None
    max_tokens: int | None = None
    """Of this turn; null: as the call says for all."""

    def sampling(self, shared: Sampling) -> Sampling:
        own = {"seed": self.seed} | ({} if self.max_tokens is None else {"max_tokens": self.max_tokens})
        return shared.model_copy(update=own)


class GenerateRequest(Message):
    """Produce turns of one group, side by side, on the instance whose queue this is. A turn that runs there already,
    because an earlier call returned before it had ended, is attached to."""

    run_id: RunId
    group_id: GroupId
    turns: tuple[CalledTurn, ...]
    version_tag: int
    sampling: Sampling
    """Of all turns; each has its own seed, and may have its own budget."""
    enough: int
    """When so many have ended, the others leave the engine with what they have stored, and the call returns."""
    one_by_one: bool = False
    """Return soon after one has ended: the others keep running in the engine."""
    one_version: bool = False
    """As in `TurnRequest`."""
    conversation: bool = False
    """As in `TurnRequest`."""

    @property
    def each(self) -> tuple[TurnRequest, ...]:
        return tuple(
            TurnRequest(
                trajectory=TrajectoryRef(run_id=self.run_id, group_id=self.group_id, index=called.index),
                turn=called.turn,
                call=called.call,
                version_tag=self.version_tag,
                sampling=called.sampling(self.sampling),
                one_version=self.one_version,
                conversation=self.conversation,
            )
            for called in self.turns
        )


class TurnFailure(Message):
    """An error of one turn, which is none of the others in its call."""

    type: str
    """Name of the error's class."""
    message: Said
    retryable: bool
    defect: bool = False
    """No error of ours: of the engine, or of what this request makes it do."""


class TurnResult(Message):
    """One turn when its call returned."""

    index: int
    end: SegmentEnd | None = None
    """Null while it runs in the engine, and when it failed."""
    failure: TurnFailure | None = None
    tokens: int = 0
    """Tokens of the turn so far, earlier calls included."""
    new_tokens: int = 0
    """Tokens that were added since the engine took it up; counted when the engine has ended it."""
    versions: tuple[int, ...] = ()
    """Versions that produced the new tokens, oldest first; empty when none was produced."""

    @property
    def complete(self) -> bool:
        return self.end in (SegmentEnd.STOP, SegmentEnd.LENGTH)

    @property
    def running(self) -> bool:
        return self.end is None and self.failure is None


class GenerateResult(Message):
    instance: InstanceId
    turns: tuple[TurnResult, ...]
    """In the order in which they were asked for."""


class EngineSpec(Message):
    """What an instance must load before it serves a run. The sections travel whole, so that an option of the engine is
    one key there and one use in the engine; a host refuses a key that it does not know."""

    run_id: RunId
    model: ModelSection
    rollout: RolloutSection
    context_tokens: int
    """Prompt and response together."""
    max_num_seqs: int
    flush_tokens: int
    flush_interval_s: float
    seed: int
    cost_model_path: str | None = None
    record_every_s: float = 0.0
    """As in `InstanceReport`."""
    migration: Migration | None = None
    """For the coordinator, which learns it from the host's reports; null when requests stay where they are."""

    @classmethod
    def of(cls, run_id: RunId, config: RunConfig) -> Self:
        migration = config.psrl.rollout_coordination.sync_and_mig_strategy.mig
        routing, recorder = (
            config.psrl.rollout_coordination.routing_strategy,
            config.psrl.status_collection.stats_recorder,
        )
        return cls(
            run_id=run_id,
            model=config.model,
            rollout=config.rollout,
            context_tokens=config.context_tokens,
            max_num_seqs=routing.max_concurrent_seqs_per_instance,
            flush_tokens=config.psrl.flush_tokens,
            flush_interval_s=config.psrl.flush_interval_s,
            seed=config.trainer.seed,
            cost_model_path=routing.cost_model_path,
            record_every_s=recorder.interval_in_s if recorder.enable else 0.0,
            migration=migration if migration.enable else None,
        )

    @property
    def kv_cache_bytes(self) -> int:
        return int(self.rollout.kv_cache_gb * 1e9)


class InstanceCommand(Message):
    """Pause, resume, drain or hold one instance on behalf of a run."""

    run_id: RunId
    instance: InstanceId


class HoldRequest(InstanceCommand):
    until_tokens: bool = False
    """Come back as soon as the engine has given tokens, and not only when the lease is over."""


class Held(Message):
    tokens: int
    """Sampled since the engine was last started."""


class PauseRequest(InstanceCommand):
    interrupt: bool = True
    """True ends running generations as INTERRUPTED; false waits until they have finished."""


class PullRequest(InstanceCommand):
    version: int


class PullResult(Message):
    version: int
    bytes: int
    seconds_read: float
    seconds_load: float
    probe_max_abs_diff: float
    """Largest |log-prob difference| between engine and trainer on the version's probe tokens."""


class InstanceState(StrEnum):
    """Life of one instance within a run. Its host and its workflow each tell it; STARTED, LOADED and LOST only the
    host."""

    STARTING = "starting"
    """The engine loads its model."""
    STARTED = "started"
    """The engine lives, at no version yet."""
    PULLING = "pulling"
    """A version is read, verified, loaded and probed."""
    LOADED = "loaded"
    """The engine holds a verified version; no request is admitted."""
    SERVING = "serving"
    """Requests are admitted at a known version."""
    PAUSING = "pausing"
    """No new request is admitted; running generations are interrupted or drained."""
    QUARANTINED = "quarantined"
    """Its restart budget is used up or its weights cannot be trusted; it gets no request."""
    LOST = "lost"
    """The engine died or is stuck; only a new start helps."""
    STOPPED = "stopped"
    """The run ended or gave the instance back."""


class InstanceReport(Message):
    """What a host tells the coordinator about itself. Soft state: the newest report counts."""

    instance: InstanceId
    run_id: str = ""
    """Empty while the instance serves no run."""
    state: InstanceState
    version: int = -1
    """-1: no weights that any request may be served with."""
    running: int = 0
    waiting: int = 0
    received: int = Field(default=0, description="turns this host process has taken up in its life")
    kv_cache_usage: float = 0.0
    """Share of `kv_capacity_tokens` that requests in progress hold."""
    kv_tokens: int = 0
    """Prompts and sampled tokens of the requests in progress; what they share is counted for each."""
    kv_capacity_tokens: int = 0
    """0 while there is no engine."""
    throughput: float = 0.0
    """Tokens sampled per second, over the last second or since the report before, whichever is longer."""
    requests: tuple[str, ...] = ()
    """Of those in the engine, the engine's own ids, in the order in which they came: `max_num_seqs` of them have a
    slot."""
    prompt_tokens: tuple[int, ...] = ()
    """Of each of `requests`: what was in its context when its turn began."""
    generated_tokens: tuple[int, ...] = ()
    """Of each of `requests`: sampled in this turn so far, by earlier calls too."""
    ttft_s: float | None = None
    """Mean time from entering the engine to the first token, of the requests that got theirs since the report before;
    null when none did."""
    itl_s: float | None = None
    """Mean time between two tokens of a request, by `running` and `throughput`; null when there were none."""
    cost: CostModel | None = None
    """Of this engine; null where the run has no cost model."""
    engine_waiting: int = 0
    """Requests that have a slot but, by their lengths, no room in the KV cache."""
    record_every_s: float = 0.0
    """How often the coordinator is to record the instance's status; 0: not at all."""
    migration: Migration | None = None
    """As the run has chosen; null when requests stay where they are."""
    pull_s: float = 0.0
    """Seconds that the engine's last pull took; 0 before the first."""
    max_num_seqs: int = 0
    pid: int = 0
    tokens_total: int = 0
    """Tokens generated in this host process's life."""

    @model_validator(mode="after")
    def _one_length_each(self) -> Self:
        if not len(self.requests) == len(self.prompt_tokens) == len(self.generated_tokens):
            raise ValueError(f"{len(self.requests)} requests with lengths of others")
        return self
