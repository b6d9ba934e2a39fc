"""`psrl.rollout_coordination.routing_strategy.*`: which instance serves a request, and who is served first."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Self

from pydantic import Field, model_validator

from .base import Section

HERE = "psrl.rollout_coordination.routing_strategy"
COST_MODEL_KEY = f"{HERE}.cost_model_path"


class RoutingMethod(StrEnum):
    """How the coordinator chooses among the instances that may serve a request."""

    REQUEST_NUM_BALANCE = "request_num_balance"
    """The instance with the fewest active requests."""
    ROUND_ROBIN = "round_robin"
    """Each instance in turn."""
    RANDOM = "random"
    """Any instance with equal probability."""
    THROUGHPUT_OPTIMAL = "throughput_optimal"
    """The instance whose tokens per second rise most, by the cost model, and the request waits while they would rise by
    too little everywhere. The waterfall: instances come in the order of `candidate_sort_indicator`."""
    THROUGHPUT_OPTIMAL_WITH_BUDGET = "throughput_optimal_with_budget"
    """The same, with every response counted as a whole number of `request_budget` tokens."""
    CACHE_AWARE = "cache_aware"
    """The instance that has the longest prefix of the request in its KV cache; the least loaded one while loads differ
    by too much."""
    CACHE_AWARE_V1 = "cache_aware_v1"
    """The same, among the instances whose KV cache has room for what they do not have yet."""

    @property
    def by_throughput(self) -> bool:
        return self in (RoutingMethod.THROUGHPUT_OPTIMAL, RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET)

    @property
    def by_prefix(self) -> bool:
        return self in (RoutingMethod.CACHE_AWARE, RoutingMethod.CACHE_AWARE_V1)


class RequestOrder(StrEnum):
    """Which of the requests that wait is served first."""

    SMALL_ID = "small_id"
    """The oldest group's."""
    LARGE_ID = "large_id"
    """The newest group's."""
    SHORT_LENGTH = "short_length"
    """The one with the shortest context."""
    LONG_LENGTH = "long_length"
    """The one with the longest context."""

    @property
    def by_length(self) -> bool:
        return self in (RequestOrder.SHORT_LENGTH, RequestOrder.LONG_LENGTH)


class CandidateOrder(StrEnum):
    """In which order instances that may serve a request are looked at."""

    VERSION = "version"
    """The oldest version that is new enough first: newer ones are kept for groups that need them."""
    RESERVE_CAPABILITY = "reserve_capability"
    """Those first on which the request needs no further slot of a buffer. The run takes a group's slot before it routes
    any of it, so no instance needs one, and all versions that are new enough come together."""


class CacheAwarePolicy(Section):
    cache_threshold: float = Field(default=0.0, ge=0, le=1)
    """The share of a request's context that an instance must have more than to get it; below, the least loaded does."""
    balance_abs_threshold: int = Field(default=16, ge=0)
    """Loads differ by too much when the largest is more than this many requests above the smallest, and more than
    `balance_rel_threshold` times it."""
    balance_rel_threshold: float = Field(default=1.5, ge=1)
    """How many times the smallest load the largest must be, at least."""
    balance_token_usage_threshold: float = Field(default=0.75, ge=0)
    """So they do when the shares of KV cache in use are further apart than this. 1 is off."""
    overload_token_usage_threshold: float = Field(default=1.0, ge=0)
    """And when one of these shares is above this. 1 is off."""
    max_tree_size: int = Field(default=2**26, ge=1)
    """Tokens of prefixes that the coordinator remembers for an instance; the longest unused are forgotten first."""
    block_size: int = Field(default=16, ge=1)
    """Tokens that are compared at once."""
    kv_capacity_threshold: float = Field(default=2.0, gt=0)
    """`cache_aware_v1`: an instance gets a request only while the tokens in its KV cache and the request's that are not
    there yet are at most this many times its capacity. Below 1 it leaves room for the answers."""

    refused: ClassVar[Mapping[str, str]] = {
        "gpu_overlap_weight": "there is one tier of KV cache: a weight would change nothing",
        "lmcache_overlap_weight": "there is no second tier of KV cache",
        "eviction_interval_secs": "what is remembered is kept within max_tree_size at all times",
    }


class RoutingStrategy(Section):
    method: RoutingMethod = RoutingMethod.REQUEST_NUM_BALANCE
    """Policy among the instances whose version is at least the group's tag and that have room."""
    max_concurrent_seqs_per_instance: int = Field(default=1024, ge=1)
    """Cap on concurrent sequences per instance; also vLLM's max_num_seqs."""
    admission_reject_on_waiting: bool = True
    """An instance gets no request while its engine lets others wait for room in its KV cache."""
    request_sort_indicator: RequestOrder = RequestOrder.SMALL_ID
    enable_multi_priority_queue: bool = False
    """Requests with an older version tag are served first, whatever their order otherwise; while one of them finds no
    instance, no newer one is served."""
    candidate_sort_indicator: CandidateOrder = CandidateOrder.VERSION
    enable_group_sticky: bool = False
    """All requests of a group go to one instance, and wait for room there. Without, they do as long as it has room."""
    cost_model_path: str | None = None
    """JSON file with what an engine costs, one entry per parallel layout: `psrl calibrate` writes it. Every rollout
    host reads it when its engine starts."""
    delta_throughput_threshold: float = Field(default=0.5, ge=0, le=1)
    """`throughput_optimal`: an instance is given a request only if that adds at least this share of the throughput
    which the request would have on an idle one."""
    request_budget: int = Field(default=1024, ge=1)
    """`throughput_optimal_with_budget`: responses are expected to have a whole number of so many tokens."""
    cache_aware_policy: CacheAwarePolicy = CacheAwarePolicy()

    refused: ClassVar[Mapping[str, str]] = {
        "enable_trajectory_sticky": "a turn always begins where the one before it was, while that has room",
        "kv_transfer": "KV cache is not moved between engines; an instance that gets a trajectory computes its prefix",
        "check_interval_in_ms": "nothing is polled for: a request that waits is looked at with every report",
        "logging_interval_in_ms": "PSRL itself does not read it",
        "snapshot_staleness_threshold_in_ms": "PSRL itself does not read it; an instance silent for 5 s gets nothing",
        "max_num_waiting_reqs_after_preemption": "vLLM does not tell of a preemption; what it preempts it continues "
        "itself",
    }

    @property
    def looks_at_tokens(self) -> bool:
        """Needs the token ids of a request's context."""
        return self.method.by_prefix

    @property
    def looks_at_lengths(self) -> bool:
        return self.method.by_throughput or self.request_sort_indicator.by_length

    @model_validator(mode="after")
    def _throughput_needs_a_cost_model(self) -> Self:
        if self.method.by_throughput and not self.cost_model_path:
            raise ValueError(
                f"{COST_MODEL_KEY}=null with {HERE}.method={self.method}; allowed: the path of a file that "
                "`psrl calibrate` has written"
            )
        return self
