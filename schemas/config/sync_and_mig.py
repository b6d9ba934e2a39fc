"""`psrl.rollout_coordination.{partial_rollout,sync_and_mig_strategy}`: when instances sync, what becomes of the
requests in their engines, and when requests move between instances."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar, Self

from pydantic import Field, model_validator

from .base import Section

SYNC_KEY = "psrl.rollout_coordination.sync_and_mig_strategy"


class Interrupt(StrEnum):
    """How a sync takes hold of the generations in an engine."""

    REROUTE = "reroute"
    """They end with what they have, and are routed anew with their prefix."""
    IN_PLACE = "in_place"
    """They wait in the engine and continue there under the new weights, with the KV cache that they have."""


class SyncMode(StrEnum):
    """What becomes of the requests in an engine at a sync. Not a key: `partial_rollout` as a whole."""

    DRAIN = "drain"
    """They finish first."""
    INTERRUPT = "interrupt"
    """They end, and continue wherever there is room."""
    IN_PLACE = "in_place"
    """They wait, and continue in the engine."""


class PartialRollout(Section):
    enable: bool = True
    """Interrupt generations at a weight sync and continue them from their stored prefix. When false, a sync
    waits until the instance's running generations have finished."""
    interrupt: Interrupt = Interrupt.REROUTE
    """`reroute`: an interrupted generation is routed anew, and its prefix is computed again under the new weights.
    `in_place`: it waits in the engine and continues there at once. A run refuses that one, since it would continue on
    KV cache that the old weights computed; it is there for the simulator."""
    interrupt_as_prompt: bool = False
    """PSRL's; only false is taken."""

    @property
    def mode(self) -> SyncMode:
        if not self.enable:
            return SyncMode.DRAIN
        return SyncMode.IN_PLACE if self.interrupt is Interrupt.IN_PLACE else SyncMode.INTERRUPT

    @model_validator(mode="after")
    def _sampled_tokens_are_no_prompt(self) -> Self:
        if self.interrupt_as_prompt:
            raise ValueError(
                "interrupt_as_prompt=true is not supported: what an interrupted generation has sampled is trained on, "
                "which a prompt never is; allowed: false, with which the engine gets it as part of the prompt all the "
                "same"
            )
        return self


class SyncMethod(StrEnum):
    """How the moment of a sync is chosen."""

    GREEDY = "greedy"
    """As soon as a version is published."""
    STATUS_BASED = "status_based"
    """By what the instance has to do (`sync.indicator`)."""


class LoadIndicator(StrEnum):
    """How busy an instance is."""

    REQUEST_NUM = "request_num"
    """Running requests."""
    THROUGHPUT = "throughput"
    """Tokens per second."""
    KV_CACHE = "kv_cache"
    """Share of its KV cache that requests hold."""


class SyncIndicator(StrEnum):
    """What a status-based sync goes by."""

    REQUEST_NUM = "request_num"
    """Running requests."""
    THROUGHPUT = "throughput"
    """Tokens per second."""
    KV_CACHE = "kv_cache"
    """Share of its KV cache that requests hold."""
    HYPOTHESIS_TEST = "hypothesis_test"
    """Whether syncing now would give more tokens than going on, by the cost model."""


class SyncStrategy(Section):
    indicator: SyncIndicator = SyncIndicator.REQUEST_NUM
    """With `method=status_based`: what the moment of a sync is chosen by."""
    threshold: float | None = Field(default=None, ge=0)
    """An instance syncs once its indicator is at this value or below: requests, tokens per second, or a share from 0 to
    1. Required with `method=status_based`, but for `indicator=hypothesis_test`, which has none."""
    check_req_before_sync: bool = True
    """It does not sync while trajectories wait for room that it may serve at the version that it has."""
    max_wait_s: float = Field(default=600, gt=0)
    """It syncs at the latest when it has been behind for so long."""
    seamless_train_version: int = Field(default=0, ge=0)
    """While the published version is this one or an older one, instances stay at theirs until the buffer that the
    trainer takes next is complete, as long as they can still fill it."""


class Migration(Section):
    enable: bool = False
    """Move requests from busy instances to instances that have run out of work: they are interrupted, and routed anew
    with their prefix. Needs partial rollout."""
    indicator: LoadIndicator = LoadIndicator.REQUEST_NUM
    """What instances are compared by."""
    threshold: float | None = Field(default=None, ge=1)
    """Requests move from an instance whose indicator is more than so many times that of one without work. Required when
    enabled."""
    stop_indicator: LoadIndicator = LoadIndicator.REQUEST_NUM
    """What an instance must have in order to give requests away."""
    stop_threshold: float | None = Field(default=None, ge=0)
    """None leaves an instance whose stop indicator is below this value. Null: no such limit."""

    @model_validator(mode="after")
    def _has_a_threshold(self) -> Self:
        if self.enable and self.threshold is None:
            raise ValueError(f"{SYNC_KEY}.mig.threshold=null while enabled; allowed: a ratio of 1 or more, such as 2")
        return self

    @model_validator(mode="after")
    def _a_share_can_be_reached(self) -> Self:
        if self.enable and self.stop_indicator is LoadIndicator.KV_CACHE and (self.stop_threshold or 0) > 1:
            raise ValueError(
                f"{SYNC_KEY}.mig.stop_threshold={self.stop_threshold:g} with mig.stop_indicator=kv_cache, which is a "
                "share; allowed: a number from 0 to 1, or null"
            )
        return self


class SyncAndMigStrategy(Section):
    method: SyncMethod = SyncMethod.GREEDY
    """`greedy`: an instance syncs as soon as a version is published. `status_based`: when it has little to do; at once
    when the run has work that no instance may do at its version; and at the latest after `sync.max_wait_s`."""
    sync: SyncStrategy = SyncStrategy()
    mig: Migration = Migration()

    refused: ClassVar[Mapping[str, str]] = {
        "check_interval_in_ms": "nothing is polled for: the coordinator judges by each report as it comes",
    }

    @property
    def estimates(self) -> bool:
        """Asks a cost model."""
        return self.method is SyncMethod.STATUS_BASED and self.sync.indicator is SyncIndicator.HYPOTHESIS_TEST

    @property
    def has_threshold(self) -> bool:
        return self.method is SyncMethod.STATUS_BASED and not self.estimates

    @model_validator(mode="after")
    def _has_a_threshold(self) -> Self:
        if self.has_threshold and self.sync.threshold is None:
            raise ValueError(
                f"{SYNC_KEY}.sync.threshold=null with method=status_based and sync.indicator={self.sync.indicator}; "
                "allowed: a number of 0 or more"
            )
        return self

    @model_validator(mode="after")
    def _a_share_can_be_exceeded(self) -> Self:
        if self.has_threshold and self.sync.indicator is SyncIndicator.KV_CACHE and (self.sync.threshold or 0) > 1:
            raise ValueError(
                f"{SYNC_KEY}.sync.threshold={self.sync.threshold:g} with sync.indicator=kv_cache, which is a share; "
                "allowed: a number from 0 to 1"
            )
        return self
