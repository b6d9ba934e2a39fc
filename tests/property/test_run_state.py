"""The pure state of a run, walked through random orders of everything that can happen to it."""

import json
from datetime import UTC, datetime

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psrl.schemas.config import parse_config
from psrl.schemas.ids import GroupId, instance_id, training_group
from psrl.schemas.messages.data import Admission
from psrl.schemas.messages.rollout import InstanceState
from psrl.schemas.messages.run import (
    EndedEvaluation,
    EndedInstance,
    EvaluationReport,
    GroupOutcome,
    GroupReport,
    InstanceChanged,
    RunPhase,
    StepHeld,
)
from psrl.workflows.calls import settings
from psrl.workflows.ledger import GroupState
from psrl.workflows.run.control import Control
from psrl.workflows.run.dispatch import groups_still_needed
from psrl.workflows.run.dispatcher import Idle
from psrl.workflows.run.faults import hopeless
from psrl.workflows.run.groups import Groups
from psrl.workflows.run.restore import empty_ledger
from psrl.workflows.run.state import RunState
from psrl.workflows.run.view import current_waits
from tests.support.scripted_parts import minimal_config

TOTAL_STEPS = 12
INSTANCES = [instance_id(number) for number in range(2)]
BAD = st.sampled_from([GroupOutcome.FAILED, GroupOutcome.FILTERED])


class RunMachine(RuleBasedStateMachine):
    """`left`: every group that ever left with a reason, and `trained`: those that were taken, as told from outside."""

    @initialize(staleness=st.integers(0, 2), offered=st.integers(2, 4))
    def begin(self, staleness: int, offered: int) -> None:
        redundant = {"redundant_rollout": {"enable": True, "redundant_global_batch_size": offered}}
        config = parse_config(
            minimal_config(
                staleness=staleness,
                agentic_rl={"refill_failure_threshold": 6},
                rollout_coordination=redundant,
            )
        )
        admission = Admission(
            config=config.model_dump(mode="json"),
            total_steps=TOTAL_STEPS,
            prompts=100,
            skipped_too_long=0,
            validation_prompts=1,
            data_fingerprint="f",
        )
        control = Control(phase=RunPhase.RUNNING)
        self.state = RunState(admission=admission, control=control, groups=Groups(ledger=empty_ledger(config)))
        self.now = 1_000_000.0
        self.taken: list[GroupId] = []
        self.left: dict[GroupId, str] = {}
        self.seen_off: list[GroupId] = []
        self.in_step = False
        for name in INSTANCES:
            self.state.fleet.add(name, self.now)

    # --- groups ------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), age=st.integers(0, 2), wave_s=st.sampled_from([0.0, 100.0]))
    def start(self, count: int, age: int, wave_s: float) -> None:
        ledger, position = self.state.groups.ledger, self.state.position
        version = max(0, ledger.version - age)
        count = min(count, ledger.free(version), groups_still_needed(ledger, TOTAL_STEPS))
        if count > 0:
            groups = tuple(training_group(position.next_group + i) for i in range(count))
            position.next_group += count
            places = [position.take() for _ in groups]
            assert len(set(places)) == count
            self.state.groups.start(version, groups, self.now)
            assert not set(groups) & set(self.state.groups.older_than(-1, self.now)), "nobody started them yet"
            self.now += wave_s
            self.state.seen(self.now)
            self.state.groups.begun(self.now)
            assert all(self.state.groups.started_at[group] == self.now for group in groups)

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        self._report(data, GroupOutcome.COMPLETE)

    @rule(data=st.data(), outcome=BAD)
    def fail(self, data: st.DataObject, outcome: GroupOutcome) -> None:
        self._report(data, outcome)

    @rule(number=st.integers(0, 60), outcome=st.sampled_from(list(GroupOutcome)))
    def report_of_no_live_group(self, number: int, outcome: GroupOutcome) -> None:
        group, before = training_group(number), self.state.model_dump()
        if self.state.groups.ledger.state(group) is not GroupState.RESERVED:
            assert not self.state.groups.report(GroupReport(group_id=group, outcome=outcome), 0.0)
            assert self.state.model_dump() == before

    @rule(data=st.data(), reason=st.sampled_from(["deadline", "aborted"]))
    def give_up(self, data: st.DataObject, reason: str) -> None:
        if unfinished := self.state.groups.unfinished:
            groups = data.draw(st.sets(st.sampled_from(unfinished), min_size=1))
            self.state.groups.give_up(sorted(groups), reason)
            self.left.update(dict.fromkeys(groups, reason))

    @rule(count=st.integers(1, 3))
    def see_off(self, count: int) -> None:
        if self.state.groups.leaving:
            reason, groups = next(iter(self.state.groups.leaving.items()))
            wave = groups[:count]
            assert all(self.left[group] == reason for group in wave)
            self.state.groups.seen_off(wave, reason)
            self.seen_off += wave

    def _report(self, data: st.DataObject, outcome: GroupOutcome) -> None:
        if unfinished := self.state.groups.unfinished:
            group = data.draw(st.sampled_from(unfinished))
            self.state.seen(self.now)
            report = GroupReport(group_id=group, outcome=outcome, reason="r")
            assert self.state.groups.report(report, self.state.absence.back_at)
            if outcome is not GroupOutcome.COMPLETE:
                self.left[group] = outcome.value

    # --- steps -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.state.groups.ledger.ready and not self.in_step and not self.state.over)
    @rule()
    def consume(self) -> None:
        live = set(self.state.groups.ledger.live_groups())
        batch = self.state.groups.consume()
        assert batch.taken is not None
        self.taken += batch.taken
        self.left.update(dict.fromkeys(batch.dropped, "dropped"))
        assert live == set(self.state.groups.ledger.live_groups()) | set(batch.taken) | set(batch.dropped)
        self.in_step = True

    @precondition(lambda self: self.in_step)
    @rule()
    def publish(self) -> None:
        self.state.groups.ledger.publish(self.state.version + 1)
        self.state.idle_since = self.now
        self.in_step = False

    # --- people, time, instances, validation -------------------------------------------------------------------------

    @rule(request=st.sampled_from(["pause", "resume"]))
    def ask(self, request: str) -> None:
        getattr(self.state.control, request)()
        assert bool(self.state.control.notice) >= self.state.control.stopping

    @rule(reason=st.sampled_from(["", "the disk is full"]))
    def hold(self, reason: str) -> None:
        self.state.control.hold(StepHeld(buffer=self.state.version, reason=reason))

    @rule(now=st.booleans())
    def stop(self, now: bool) -> None:
        self.state.control.stop(now)

    @rule(seconds=st.sampled_from([1.0, 30.0, 100_000.0]))
    def time_passes(self, seconds: float) -> None:
        """The last is an absence."""
        ages = {group: self.now - at for group, at in self.state.groups.started_at.items()}
        self.state.seen(self.now)
        self.now += seconds
        self.state.seen(self.now)
        lived = seconds if seconds <= settings.ABSENCE.total_seconds() else 0.0
        for group, at in self.state.groups.started_at.items():
            assert abs((self.now - at) - (ages[group] + lived)) < 1e-3

    @rule(name=st.sampled_from(INSTANCES), state=st.sampled_from(list(InstanceState)))
    def instance_changes(self, name: str, state: InstanceState) -> None:
        assert self.state.fleet.hear(InstanceChanged(instance=name, state=state, version=0, quarantined_s=700))

    @rule(name=st.sampled_from(INSTANCES), stopped=st.booleans())
    def instance_ends(self, name: str, stopped: bool) -> None:
        if name in self.state.fleet.living:
            again = self.state.fleet.end(
                EndedInstance(instance=name, stopped=stopped, reason="r"),
                self.now,
                self.state.config.psrl.deployment,
            )
            assert again == (name in self.state.fleet.living), "whoever is not started anew has stopped"

    @rule(version=st.integers(0, 3))
    def validation_begins(self, version: int) -> None:
        self.state.rounds.begin(version)

    @rule(version=st.integers(0, 3), found=st.booleans())
    def validation_ends(self, version: int, found: bool) -> None:
        report = EvaluationReport(run_id="r", version=version, accuracy=0.5, scored=1, failed=0) if found else None
        again = self.state.rounds.end(EndedEvaluation(version=version, report=report, reason="r"), budget=10**6)
        assert again == (version in self.state.rounds.open)

    @precondition(lambda self: not self.in_step)
    @rule()
    def roll_over(self) -> None:
        before = self.state.model_dump()
        self.state = RunState.model_validate(json.loads(json.dumps(self.state.model_dump(mode="json"))))
        assert self.state.model_dump() == before

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def every_group_is_in_one_place(self) -> None:
        live = set(self.state.groups.ledger.live_groups())
        assert not live & set(self.left)
        assert not live & set(self.taken)
        assert not set(self.taken) & set(self.left)
        assert len(self.taken) == len(set(self.taken))
        drawn = {training_group(number) for number in range(self.state.position.next_group)}
        assert live | set(self.taken) | set(self.left) == drawn

    @invariant()
    def whoever_left_is_seen_off_once_or_will_be(self) -> None:
        waiting = [group for groups in self.state.groups.leaving.values() for group in groups]
        assert sorted(waiting + self.seen_off) == sorted(self.left)
        assert all(self.left[group] == reason for reason, wave in self.state.groups.leaving.items() for group in wave)

    @invariant()
    def every_unfinished_group_has_a_deadline_and_no_other(self) -> None:
        ledger = self.state.groups.ledger
        reserved = {group for group in ledger.live_groups() if ledger.state(group) is GroupState.RESERVED}
        assert set(self.state.groups.started_at) == reserved

    @invariant()
    def counts_are_of_those_who_left(self) -> None:
        assert sum(self.state.groups.dropped.values()) == len(self.left)
        assert self.state.groups.failures + self.state.groups.drops <= len(self.left)

    @invariant()
    def every_wait_has_an_owner_and_a_deadline_unless_a_person_decides(self) -> None:
        now = datetime.fromtimestamp(self.now, UTC)
        for idle in (Idle(), Idle("no instance has room"), Idle(asked_at=self.now)):
            waits = current_waits(self.state.control, self.state, idle, (), now)
            assert waits or self.in_step
            for wait in waits:
                assert wait.what
                assert wait.owner
                assert wait.deadline is not None or wait.owner == "a person"
                assert wait.otherwise or wait.owner == "a person"

    @invariant()
    def a_run_gives_up_only_for_a_reason_that_it_names(self) -> None:
        fault = hopeless(self.state, "idle")
        left_alone = self.state.fleet.none_left(self.state.config.psrl.deployment.no_instance_timeout_s)
        assert (fault is not None) == (left_alone or self.state.groups.failures >= 6)
        if left_alone:
            assert all(name in str(fault) for name in INSTANCES)


TestRunState = RunMachine.TestCase
TestRunState.settings = hypothesis_settings(max_examples=60, stateful_step_count=60, deadline=None)
