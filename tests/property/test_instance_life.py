"""One engine's life through every order of start, sync, failure at any call, quarantine, return, stop and
continue-as-new, as `RolloutInstance` leads it."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psrl.schemas.ids import InstanceId, RunId
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import StartInstance
from psrl.workflows.calls import settings as limits
from psrl.workflows.rollout.life import Life
from tests.support.rollout import SPEC

HEALS_S = 600.0
UP = {InstanceState.SERVING, InstanceState.PAUSING, InstanceState.PULLING}


class InstanceMachine(RuleBasedStateMachine):
    """The next call is `start`, `pull`, `pause` or none (it serves); each may succeed or fail."""

    @initialize(allowed=st.integers(0, 3))
    def begin(self, allowed: int) -> None:
        self.now, self.allowed, self.next = 0.0, allowed, "start"
        self.pulled = -1
        self.start = StartInstance(
            run_workflow_id="run",
            instance=InstanceId("rollout-0"),
            spec=SPEC.model_copy(update={"run_id": RunId("run")}),
            version=0,
            interrupt=True,
            start_timeout_s=60,
            restart_budget=allowed,
            restart_budget_heals_s=HEALS_S,
        )
        self.life = Life(self.start)
        self.failures = 0
        """In a row, without a long stretch of service between them."""
        self.served_since: float | None = None
        self.shut_out = False
        """More failures than the budget allows, and no service since."""
        self.in_vain_s, self.shut_out_at = 0.0, 0.0
        self.stopped = False

    @rule(seconds=st.sampled_from([1.0, 30.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.next == "start" and not self.stopped)
    @rule()
    def starts(self) -> None:
        self.next = "pull"
        self.life.pulls()

    @precondition(lambda self: self.next == "pull" and not self.stopped)
    @rule()
    def is_pulled_and_resumed(self) -> None:
        self.pulled = self.life.target
        self.life.serves(self.pulled, self.now)
        self.next = ""
        if self.shut_out:
            self.in_vain_s += self.now - self.shut_out_at
        self.shut_out = False
        self.served_since = self.now if self.served_since is None else self.served_since

    @rule(further=st.integers(-1, 2))
    def sync_is_asked_for(self, further: int) -> None:
        self.life.target = max(self.life.target, self.life.target + further)

    @precondition(lambda self: self.next == "" and not self.stopped)
    @rule()
    def syncs(self) -> None:
        self.sync_is_asked_for(1)
        assert self.life.behind
        self.life.pauses()
        self.next = "pause"

    @precondition(lambda self: self.next == "pause" and not self.stopped)
    @rule()
    def is_paused(self) -> None:
        self.life.pulls()
        self.next = "pull"

    @precondition(lambda self: self.next == "" and not self.stopped)
    @rule()
    def gives_tokens(self) -> None:
        self.life.budget.useful()
        self.in_vain_s = 0.0

    @precondition(lambda self: not self.stopped)
    @rule(really=st.sampled_from([False, False, True]), for_good=st.booleans())
    def fails(self, really: bool, for_good: bool) -> None:
        if not really:
            return
        for_good = for_good and self.next == "start"
        self.note_long_service()
        self.failures = 1 + (max(self.failures, self.allowed) if for_good else self.failures)
        self.served_since, self.pulled, self.next = None, -1, "start"
        if self.failures > self.allowed and not self.shut_out:
            self.shut_out, self.shut_out_at = True, self.now
        self.life.failed(self.now, for_good)
        assert 0 < self.life.budget.pause_s <= limits.PROBE_PAUSE_MAX_S

    @precondition(lambda self: self.next in {"", "start"} and not self.stopped)
    @rule()
    def continues_as_new(self) -> None:
        self.note_long_service()
        carried = {"version": self.life.target, "record": self.life.budget.record(self.now)}
        self.start = StartInstance.model_validate_json(self.start.model_copy(update=carried).model_dump_json())
        self.life, self.pulled, self.next = Life(self.start), -1, "start"

    @precondition(lambda self: not self.stopped)
    @rule(really=st.sampled_from([*[False] * 15, True]))
    def stops(self, really: bool) -> None:
        if not really:
            return
        self.life.stopped()
        self.stopped = True

    def note_long_service(self) -> None:
        if self.served_since is not None and self.now - self.served_since >= HEALS_S:
            self.failures, self.in_vain_s = 0, 0.0

    @invariant()
    def people_are_told_the_truth(self) -> None:
        seen = self.life.seen(self.now)
        if self.stopped:
            assert (seen.state, seen.version) == (InstanceState.STOPPED, -1)
            return
        assert (seen.state is InstanceState.QUARANTINED) == self.shut_out
        assert (seen.state is InstanceState.SERVING) == (self.next == "")
        assert seen.version == self.pulled
        if self.shut_out:
            assert seen.quarantined_s == self.in_vain_s + self.now - self.shut_out_at
        else:
            assert seen.quarantined_s == 0

    @invariant()
    def it_serves_only_what_was_pulled(self) -> None:
        if self.life.state is InstanceState.SERVING:
            assert 0 <= self.pulled <= self.life.target

    @invariant()
    def the_budget_is_bounded(self) -> None:
        assert self.life.budget.failures == self.failures or self.served_since is not None
        assert self.life.budget.quarantined == self.shut_out
        assert self.life.budget.spent == (self.life.budget.failures > self.allowed)


TestInstanceLife = InstanceMachine.TestCase
TestInstanceLife.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
