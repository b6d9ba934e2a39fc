"""Coordinator, ledger and instances through every order of reports, routing, finished requests, syncs, migrations,
joins, losses and restarts of the coordinator: no token is older than its group's tag, no group is trained outside its
bound, none is lost, and whatever happened before, a run that is left alone goes on."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psrl.schemas.config.sync_and_mig import Migration, SyncAndMigStrategy, SyncIndicator, SyncMethod, SyncMode
from psrl.schemas.config.sync_and_mig import SyncStrategy as SyncKeys
from psrl.schemas.ids import GroupId, InstanceId, RunId, engine_request, training_group
from psrl.schemas.messages.coordination import HostCommand, SyncRequest
from psrl.schemas.messages.rollout import (
    DispatchPlanRequest,
    DispatchRoom,
    InstanceReport,
    InstanceState,
    RouteRequest,
)
from psrl.workers.coordinator.fleet import Fleet
from psrl.workers.coordinator.migrations import Migrations
from psrl.workers.coordinator.policies.sync.registry import sync_policy
from psrl.workers.coordinator.view import View
from psrl.workflows.ledger import Ledger
from psrl.workflows.run.dispatch import plan_wave
from tests.support.loads import COST

RUN, MEMBERS, SLOTS = RunId("run"), 2, 3
MOVES = Migration(enable=True, threshold=1.5)
STRATEGIES = [
    SyncAndMigStrategy(mig=MOVES),
    *(
        SyncAndMigStrategy(
            method=SyncMethod.STATUS_BASED, sync=SyncKeys(indicator=indicator, threshold=0, max_wait_s=1e6), mig=MOVES
        )
        for indicator in SyncIndicator
    ),
]
"""The strictest thresholds: what makes progress with them does with others."""
ROUNDS = 200


@dataclass
class Member:
    """One trajectory, wherever it is."""

    group: GroupId
    index: int
    tag: int
    versions: list[int] = field(default_factory=list)
    """Of its tokens."""
    finished: bool = False


@dataclass
class Host:
    name: InstanceId
    version: int
    pid: int = 0
    received: int = 0
    requests: dict[str, Member] = field(default_factory=dict)
    on_the_way: list[Member] = field(default_factory=list)

    def report(self) -> InstanceReport:
        lengths = tuple(len(one.versions) for one in self.requests.values())
        return InstanceReport(
            instance=self.name,
            run_id=RUN,
            state=InstanceState.SERVING,
            version=self.version,
            running=len(self.requests),
            requests=tuple(self.requests),
            prompt_tokens=(5,) * len(lengths),
            generated_tokens=lengths,
            received=self.received,
            kv_capacity_tokens=1000,
            kv_cache_usage=sum(lengths) / 1000,
            max_num_seqs=SLOTS,
            pid=self.pid,
            throughput=10.0 * len(lengths),
            cost=COST,
            migration=MOVES,
        )


class CoordinationMachine(RuleBasedStateMachine):
    @initialize(eta=st.integers(0, 2), hosts=st.integers(1, 3), strategy=st.sampled_from(STRATEGIES))
    def begin(self, eta: int, hosts: int, strategy: SyncAndMigStrategy) -> None:
        self.ledger = Ledger(staleness=eta, batch_groups=2, offered_groups=2)
        self.strategy, self.policy = strategy, sync_policy(strategy)
        self.now, self.groups, self.calls = 0.0, 0, 0
        self.hosts: dict[InstanceId, Host] = {}
        self.members: dict[GroupId, list[Member]] = {}
        self.routing: list[Member] = []
        self.coordinator_starts()
        for number in range(hosts):
            self.host_joins(number)

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """As `RouteQueue` tells of the calls that it holds."""
        for member in self.routing:
            yield RUN, member.tag, 1

    # --- the coordinator ---------------------------------------------------------------------------------------------

    @rule()
    def coordinator_starts(self) -> None:
        """For the first time, or after a kill: it knows nothing."""
        self.fleet = Fleet(chance=lambda: 0.5)
        self.view = View(self.fleet, self)  # type: ignore[arg-type]
        self.migrations = Migrations(self.view, self.command)

    def command(self, instance: InstanceId, command: HostCommand) -> bool:
        host = self.hosts.get(instance)
        if host is None:
            return False
        assert len(command.requests) == len(set(command.requests))
        for request in command.requests:
            if request in host.requests:
                self.routing.append(host.requests.pop(request))
        return True

    @rule(pick=st.integers(0, 9), lost=st.booleans())
    def host_reports(self, pick: int, lost: bool = False) -> None:
        if not self.hosts or lost:
            return
        host = list(self.hosts.values())[pick % len(self.hosts)]
        self.now += 0.2
        report = host.report()
        self.fleet.report(report, self.now)
        self.migrations.look(report, self.now)

    @rule(seconds=st.floats(0, 8))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # --- the run -----------------------------------------------------------------------------------------------------

    @rule()
    def dispatch(self) -> None:
        admits = tuple(DispatchRoom(version=tag, groups=self.ledger.free(tag)) for tag in self.ledger.open_tags)
        if not any(room.groups for room in admits):
            return
        request = DispatchPlanRequest(run_id=RUN, trajectories_per_group=MEMBERS, admits=admits)
        self.view.hear(request, self.now)
        wave = plan_wave(self.ledger, self.fleet.plan(request, self.now).rooms, needed=4, limit=4)
        if wave is None:
            return
        for _ in range(wave.groups):
            group = training_group(self.groups)
            self.groups += 1
            self.ledger.reserve(wave.version, [group])
            self.members[group] = [Member(group, index, wave.version) for index in range(MEMBERS)]
            self.routing += self.members[group]

    @rule(pick=st.integers(0, 9))
    def route(self, pick: int) -> None:
        if not self.routing:
            return
        member = self.routing[pick % len(self.routing)]
        asked = RouteRequest(run_id=RUN, group_id=member.group, indices=(member.index,), version_tag=member.tag)
        asked = self.migrations.steer(asked)
        result = self.fleet.place(asked, self.now)
        self.migrations.placed(asked, result)
        for placement in result.placements:
            assert placement.version >= member.tag
            self.routing.remove(member)
            if placement.instance in self.hosts:
                self.hosts[placement.instance].on_the_way.append(member)
            else:
                self.routing.append(member)

    @rule(pick=st.integers(0, 9))
    def train(self, pick: int = 0) -> None:
        if not self.ledger.ready:
            return
        taken = self.ledger.consume()
        assert taken.taken is not None
        assert taken.dropped == (), "as many are offered as a batch takes"
        for group in taken.taken:
            [tag] = {member.tag for member in self.members.pop(group)}
            assert tag <= taken.buffer <= tag + self.ledger.staleness
        self.ledger.publish(self.ledger.version + 1)

    # --- the instances -----------------------------------------------------------------------------------------------

    @rule(pick=st.integers(0, 9))
    def requests_arrive(self, pick: int) -> None:
        """A host refuses a tag that is newer than what it serves."""
        if not self.hosts:
            return
        host = list(self.hosts.values())[pick % len(self.hosts)]
        for member in host.on_the_way:
            host.received += 1
            if host.version < member.tag:
                self.routing.append(member)
                continue
            self.calls += 1
            host.requests[engine_request(member.group, member.index, self.calls)] = member
        host.on_the_way = []

    @rule(pick=st.integers(0, 9), finishes=st.integers(0, 3))
    def engine_steps(self, pick: int, finishes: int) -> None:
        """Each request that has a slot gets a token; so many of them are complete with it."""
        if not self.hosts:
            return
        host = list(self.hosts.values())[pick % len(self.hosts)]
        for request, member in list(host.requests.items())[:SLOTS]:
            member.versions.append(host.version)
            if finishes:
                finishes -= 1
                member.finished = True
                del host.requests[request]
                if all(one.finished for one in self.members[member.group]):
                    self.ledger.occupy(member.group)

    @rule(pick=st.integers(0, 9))
    def host_syncs(self, pick: int) -> None:
        """When it is behind, and its policy finds the moment good."""
        behind = [host for host in self.hosts.values() if host.version < self.ledger.version]
        if not behind:
            return
        host = behind[pick % len(behind)]
        request = SyncRequest(
            run_id=RUN,
            instance=host.name,
            version=self.ledger.version,
            strategy=self.strategy,
            mode=SyncMode.INTERRUPT,
        )
        seen = self.view.sync(request, self.now)
        if seen is None or not seen.own.serving or not self.policy(seen).due:
            return
        self.routing += host.requests.values()
        host.requests = {}
        host.version = self.ledger.version

    @precondition(lambda self: len(self.hosts) < 4)
    @rule(number=st.integers(0, 3))
    def host_joins(self, number: int) -> None:
        name = InstanceId(f"rollout-{number}")
        self.hosts.setdefault(name, Host(name, self.ledger.version))

    @precondition(lambda self: self.hosts)
    @rule(pick=st.integers(0, 9), again=st.booleans())
    def host_is_lost(self, pick: int, again: bool) -> None:
        """What it ran is routed anew; one that comes back has pulled the newest version."""
        host = list(self.hosts.values())[pick % len(self.hosts)]
        self.routing += [*host.requests.values(), *host.on_the_way]
        del self.hosts[host.name]
        if again:
            self.hosts[host.name] = Host(host.name, self.ledger.version, pid=host.pid + 1)

    # --- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def no_token_is_older_than_its_tag(self) -> None:
        """It may be older than the token before it, which the bound does not forbid: its engine was lost, say, and one
        that is behind had room."""
        for member in (member for group in self.members.values() for member in group):
            assert all(version >= member.tag for version in member.versions)

    @invariant()
    def every_unfinished_trajectory_is_in_one_place(self) -> None:
        hosts = self.hosts.values()
        places = [*self.routing, *(one for host in hosts for one in [*host.requests.values(), *host.on_the_way])]
        unfinished = [one for group in self.members.values() for one in group if not one.finished]
        assert sorted(map(id, places)) == sorted(map(id, unfinished))

    def teardown(self) -> None:
        """Left alone, the run goes on, whatever its policies: past eta + 1 buffers it cannot without a sync."""
        if not hasattr(self, "ledger"):
            return
        self.host_joins(0)
        end = self.ledger.version + self.ledger.staleness + 2
        for _ in range(ROUNDS):
            self.one_round()
            if self.ledger.version >= end:
                return
        raise AssertionError(f"v{end} is not there after {ROUNDS} rounds; {len(self.routing)} trajectories wait")

    def one_round(self) -> None:
        for number in range(len(self.hosts)):
            self.host_reports(number)
        self.dispatch()
        for number in range(len(self.routing)):
            self.route(number)
        for number in range(len(self.hosts)):
            self.requests_arrive(number)
            self.host_reports(number)
            self.host_syncs(number)
            self.engine_steps(number, finishes=1)
        self.train()


TestCoordinationMachine = CoordinationMachine.TestCase
TestCoordinationMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
