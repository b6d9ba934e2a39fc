"""The simulated instances in front of the coordinator's own `Fleet`, which routes as it does in a run.

Promises: what has changed is reported before the next question is asked; an answer is never given to an instance whose
version is older than its tag.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from ...schemas.config import RoutingMethod
from ...schemas.ids import GroupId, InstanceId, instance_id
from ...schemas.messages.rollout import DispatchPlanRequest, DispatchRoom, InstanceState, RouteRequest
from ..coordinator.fleet import Fleet
from ..coordinator.instance import SILENCE_S
from ..coordinator.policies.load import InstanceLoad
from .engine import Engine
from .engine import Sequence as Answer
from .instance import RUN, Instance
from .scenario import Scenario
from .world import World


class SimulatedFleet:
    def __init__(self, world: World) -> None:
        scenario = world.scenario
        self._clock, self._timeline = world.clock, world.timeline
        self._fleet = Fleet(random.Random(f"{scenario.simulate.seed}/routing").random)
        self._sync_s = scenario.simulate.sync_s
        self._strategy = scenario.psrl.rollout_coordination.routing_strategy
        self._plan = DispatchPlanRequest(
            run_id=RUN, trajectories_per_group=scenario.psrl.offered_trajectories, strategy=self._strategy
        )
        self.instances = [_instance(number, scenario) for number in range(scenario.instances)]
        self._by_name = {instance.name: instance for instance in self.instances}
        self._on: dict[Answer, Instance] = {}
        """Every answer that is in an engine."""
        self._changed = dict.fromkeys(self.instances)

    # --- what the coordinator is asked -------------------------------------------------------------------------------

    def rooms(self) -> tuple[DispatchRoom, ...]:
        self._tell()
        return self._fleet.plan(self._plan, self._clock.now).rooms

    def question(self, group: GroupId, tag: int, answers: Sequence[Answer], prefer: InstanceId | None) -> RouteRequest:
        """For these answers of one group, all that the run's strategy looks at."""
        lengths = self._strategy.looks_at_lengths
        return RouteRequest(
            run_id=RUN,
            group_id=group,
            indices=tuple(answer.index for answer in answers),
            version_tag=tag,
            strategy=self._strategy,
            prefer=prefer,
            tokens=tuple(int(answer.context) for answer in answers) if lengths else (),
            sampled=tuple(int(answer.sampled) for answer in answers) if lengths else (),
        )

    def place(self, request: RouteRequest, answers: Sequence[Answer]) -> list[Answer]:
        """Into engines, as far as there is room; what found none comes back."""
        self._tell()
        by_index, tag = {answer.index: answer for answer in answers}, request.version_tag
        for placement in self._fleet.place(request, self._clock.now).placements:
            instance = self._by_name[placement.instance]
            assert instance.state is InstanceState.SERVING
            assert instance.version >= tag
            self._add(by_index.pop(placement.index), instance)
        return list(by_index.values())

    def is_pinned(self, question: RouteRequest) -> bool:
        return self._fleet.is_pinned(question)

    def _tell(self) -> None:
        now = self._clock.now
        for instance in self.instances:
            if instance.told_at is None or now - instance.told_at > SILENCE_S / 2:
                self._fleet.report(instance.report(now), now)
                instance.told_at = now

    # --- what happens to the instances -------------------------------------------------------------------------------

    def _add(self, answer: Answer, instance: Instance) -> None:
        self.touch(instance)
        instance.engine.add(answer, self._clock.now)
        instance.received += 1
        self._on[answer] = instance

    def has(self, answer: Answer) -> bool:
        return answer in self._on

    def remove(self, answer: Answer) -> None:
        """It is not wanted any more, wherever it is."""
        if (instance := self._on.pop(answer, None)) is not None:
            self.touch(instance)
            instance.engine.remove(answer, self._clock.now)

    def ended(self, instance: Instance) -> list[Answer]:
        """Answers that are complete by now."""
        self.touch(instance)
        ended = instance.engine.change(self._clock.now)
        for answer in ended:
            del self._on[answer]
        return ended

    def interrupt(self, instance: Instance) -> list[Answer]:
        """All that it had."""
        self.touch(instance)
        out = instance.engine.interrupt(self._clock.now)
        for answer in out:
            del self._on[answer]
        return out

    def take(self, name: InstanceId, requests: Sequence[str]) -> list[Answer]:
        """These out of its engine."""
        there = {answer.name: answer for answer in self._by_name[name].engine.answers(self._clock.now)}
        taken = [there[request] for request in requests]
        for answer in taken:
            self.remove(answer)
        return taken

    def loads(self) -> list[InstanceLoad]:
        """As policies see them."""
        return [instance.load(self._clock.now, self._sync_s) for instance in self.instances]

    def touch(self, instance: Instance) -> None:
        """Something is about to change."""
        instance.count(self._clock.now)
        instance.told_at = None
        self._changed[instance] = None

    def foresee(self, happens: Callable[[Instance], None]) -> None:
        """Once everything of this moment has happened: when each engine that has changed will have something to say."""
        for instance in self._changed:
            self._timeline.running(instance.number, self._clock.now, instance.engine.running)
            instance.plan += 1
            if (when := instance.engine.next_change()) < inf:
                self._clock.at(when, partial(self._came, instance, instance.plan, happens))
        self._changed.clear()

    @staticmethod
    def _came(instance: Instance, plan: int, happens: Callable[[Instance], None]) -> None:
        if plan == instance.plan:
            happens(instance)


def _instance(number: int, scenario: Scenario) -> Instance:
    costs, speed = scenario.simulate, scenario.speed(number)
    routing = scenario.psrl.rollout_coordination.routing_strategy
    slots, prefill_s = routing.max_concurrent_seqs_per_instance, costs.engine.prefill_s_per_token / speed
    return Instance(
        number=number,
        name=instance_id(number),
        engine=Engine(costs.engine.model(speed), prefill_s, slots, costs.kv_capacity_tokens or inf),
        slots=slots,
        kv_capacity_tokens=costs.kv_capacity_tokens,
        cost=scenario.known_cost(number),
        by_request=routing.method is RoutingMethod.THROUGHPUT_OPTIMAL_WITH_BUDGET,
    )
