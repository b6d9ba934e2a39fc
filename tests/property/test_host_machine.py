"""A host and its scripted engine through every order of start, pull, pause, resume, release, death, failed load, wrong
probe and lost lease: never an illegal transition, and nobody let in without a verified pull."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psrl.schemas.errors import EngineUnavailable, InvariantViolated, WeightsRefused
from psrl.schemas.ids import Version
from psrl.schemas.messages.rollout import InstanceState
from psrl.workers.rollout.life import LIFE
from psrl.workflows.machine import reachable
from tests.support.rollout import RUN, SPEC, make_host
from tests.support.scripted_engine import Script

VERSIONS = st.integers(0, 3)
SELDOM = st.sampled_from([False, False, False, True])
"""Else the walk would hardly ever get as far as SERVING."""
PULLS = st.sampled_from([*["good"] * 4, "damaged", "fails midway", "computes something else"])
AT_REST = {
    InstanceState.STOPPED,
    InstanceState.STARTED,
    InstanceState.LOADED,
    InstanceState.SERVING,
    InstanceState.QUARANTINED,
    InstanceState.LOST,
}


def test_every_state_can_be_reached_and_left() -> None:
    for state in LIFE:
        assert reachable(LIFE, state) == set(InstanceState)


class HostMachine(RuleBasedStateMachine):
    """`verified` is the version whose pull was the last to touch the engine, and succeeded."""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.script = Script()
        self.host, self.weights, self.engines = make_host(self.script)
        self.verified: int | None = None
        self.admitting = False

    def teardown(self) -> None:
        self.do(self.host.shutdown())
        assert self.host.report().state is InstanceState.STOPPED, "it always ends after a stop"
        assert all(not engine.alive() for engine in self.engines)
        self.runner.close()

    def do(self, operation: Coroutine[Any, Any, Any]) -> bool:
        """Whether it succeeded; it may only fail as the workflow expects."""

        async def done() -> bool:
            try:
                await operation
            except (EngineUnavailable, WeightsRefused):
                return False
            return True

        return self.runner.run(done())

    @property
    def alive(self) -> bool:
        return bool(self.engines) and self.engines[-1].alive()

    @rule(fails=SELDOM)
    def start(self, fails: bool) -> None:
        made = len(self.engines)
        self.script.failing_starts = int(fails)
        started = self.do(self.host.start(SPEC))
        if len(self.engines) > made:
            self.verified = None
        assert started == (len(self.engines) == made or not fails)
        self.script.failing_starts = 0
        self.admitting = False

    @rule(version=VERSIONS, how=PULLS)
    def pull(self, version: int, how: str) -> None:
        before, engine_holds = self.host.report().state, self.verified == version
        self.weights.damaged = {version} if how == "damaged" else set()
        self.script.failing_loads = [version] if how == "fails midway" else []
        self.script.wrong_probes = [version] if how == "computes something else" else []
        if before is InstanceState.SERVING and self.alive:
            try:
                self.runner.run(self.host.pull(RUN, Version(version)))
            except InvariantViolated:
                return
            raise AssertionError("weights were changed while requests are admitted")
        pulled = self.do(self.host.pull(RUN, Version(version)))
        if not self.alive or before in {InstanceState.STOPPED, InstanceState.LOST}:
            assert not pulled
        elif not engine_holds and how != "damaged":
            self.verified = version if pulled else None
            assert pulled == (how == "good")

    @rule(interrupt=st.booleans())
    def pause(self, interrupt: bool) -> None:
        if self.do(self.host.pause(RUN, interrupt)):
            self.admitting = False

    @rule()
    def resume(self) -> None:
        if self.do(self.host.resume(RUN)):
            assert self.verified is not None
            self.admitting = True

    @rule(version=VERSIONS)
    def all_goes_well(self, version: int) -> None:
        self.start(fails=False)
        self.pull(version, "good")
        self.resume()
        assert self.admitting

    @rule(really=SELDOM)
    def release(self, really: bool) -> None:
        if not really:
            return
        self.do(self.host.release(RUN))
        self.admitting, self.verified = False, None
        assert self.host.report().state is InstanceState.STOPPED

    @precondition(lambda self: self.alive)
    @rule(really=SELDOM, noticed=st.booleans())
    def engine_dies(self, really: bool, noticed: bool) -> None:
        if not really:
            return
        self.runner.run(self.engines[-1].die())
        self.admitting, self.verified = False, None
        if noticed:
            self.death_is_looked_for()

    @rule()
    def death_is_looked_for(self) -> None:
        async def look() -> None:
            self.host.notice_death()

        self.runner.run(look())

    @invariant()
    def an_operation_ends_in_a_state_of_rest(self) -> None:
        assert self.host.report().state in AT_REST

    @invariant()
    def a_version_is_told_only_when_it_is_certain(self) -> None:
        report = self.host.report()
        certain = report.state in {InstanceState.LOADED, InstanceState.SERVING}
        assert (report.version >= 0) == certain
        if self.alive and certain:
            assert report.version == self.verified

    @invariant()
    def nobody_is_let_in_without_a_verified_pull(self) -> None:
        report = self.host.report()
        entered = self.do(self.enter())
        assert entered == (self.admitting and self.alive)
        if entered:
            assert (report.state, report.version) == (InstanceState.SERVING, self.verified)
            assert self.engines[-1].loaded[-1] == self.verified
            assert not self.engines[-1].paused

    async def enter(self) -> None:
        if await self.host.enter(RUN, 0, patience_s=0) is None:
            raise EngineUnavailable("the gate is shut")


TestHostMachine = HostMachine.TestCase
TestHostMachine.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
