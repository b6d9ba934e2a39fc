"""The groups of a simulated run, from the slot in the ledger to the reward.

Promises: the run's ledger admits every group, and its dispatch plans every wave; a group that has left has nothing in
any engine; every group ends in exactly one of `Tally`'s counts, or is in flight.
"""

import random
from collections.abc import Iterable

from ...schemas.ids import GroupId, InstanceId, Version, training_group
from ...workflows.calls.settings import DISPATCH_WAVE
from ...workflows.ledger import Consumption, GroupState
from ...workflows.run.dispatch import Wave, groups_still_needed, plan_wave
from .engine import Sequence as Answer
from .fleet import SimulatedFleet
from .instance import Instance
from .lengths import tokens_of
from .waiting import Group, Waiting
from .world import World


class Rollouts:
    def __init__(self, world: World, fleet: SimulatedFleet) -> None:
        self._costs, self._psrl = world.scenario.simulate, world.scenario.psrl
        self._clock, self._ledger, self._tally, self._fleet = world.clock, world.ledger, world.tally, fleet
        self._groups: dict[GroupId, Group] = {}
        """That are in the ledger."""
        self._of: dict[int, Group] = {}
        self._waiting = Waiting(fleet, self._psrl.rollout_coordination.routing_strategy)
        self._drawn = 0

    # --- into the engines --------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Route whoever waits, then start as many groups as ledger and fleet have room for."""
        self._waiting.serve()
        while self._ledger.free(self._ledger.version):
            needed = groups_still_needed(self._ledger, self._costs.steps)
            rooms = self._fleet.rooms() if needed else ()
            wave = plan_wave(self._ledger, rooms, needed, DISPATCH_WAVE)
            if wave is None:
                return
            self._start(wave)
            self._waiting.serve()
            if wave.groups == sum(room.groups for room in rooms):
                return  # To ask again would be in vain: all the room there was is taken.

    def back(self, answers: list[Answer], prefer: InstanceId | None = None) -> None:
        """Interrupted: they continue wherever there is room."""
        for answer in answers:
            self._waiting.add(self._of[answer.group], [answer], prefer)

    def _start(self, wave: Wave) -> None:
        numbers = range(self._drawn, self._drawn + wave.groups)
        self._drawn += wave.groups
        self._ledger.reserve(wave.version, [training_group(number) for number in numbers])
        for number in numbers:
            answers = [self._answer(number, index) for index in range(self._psrl.offered_trajectories)]
            group = Group(number, training_group(number), wave.version, answers, homeless=[], finished=[])
            self._groups[group.name] = self._of[number] = group
            self._waiting.add(group, answers)
        self._tally.drawn += wave.groups
        self._tally.requests += wave.groups * self._psrl.offered_trajectories

    def _answer(self, group: int, index: int) -> Answer:
        length = tokens_of(self._costs.lengths, self._costs.seed, group, index)
        return Answer(group=group, index=index, prompt=self._costs.prompt_tokens, length=length)

    # --- out of them -------------------------------------------------------------------------------------------------

    def changed(self, instance: Instance) -> None:
        """An engine has something to say."""
        for answer in self._fleet.ended(instance):
            group = self._of[answer.group]
            group.finished.append(answer)
            if len(group.finished) == self._psrl.rollout_n:
                self._give_up_rest(group)
                self._clock.after(self._costs.score_s, lambda group=group: self._scored(group))  # type: ignore[misc]

    def _scored(self, group: Group) -> None:
        if self._ledger.state(group.name) is not GroupState.RESERVED:
            return
        chance = random.Random(f"{self._costs.seed}/{group.number}/filter").random()
        if chance < self._costs.filtered_share:
            self._ledger.release(group.name)
            self._tally.filtered += 1
            self._leave(group, trained=False)
        else:
            self._ledger.occupy(group.name)

    def consume(self) -> Consumption:
        """As the ledger's. What is taken is trained on, what is dropped leaves its engines."""
        done = self._ledger.consume()
        for name in done.taken or ():
            group = self._groups[name]
            self._tally.take(done.buffer - group.tag, [answer.length for answer in group.finished])
            self._leave(group, trained=True)
        for name in done.dropped:
            group = self._groups[name]
            self._give_up_rest(group)
            self._tally.dropped += 1
            self._leave(group, trained=False)
        return done

    def _give_up_rest(self, group: Group) -> None:
        for answer in group.answers:
            if not answer.over:
                self._fleet.remove(answer)
                answer.over = True
                self._tally.lost_tokens += answer.sampled
        group.homeless = []

    def _leave(self, group: Group, trained: bool) -> None:
        if not trained:
            self._tally.lost_tokens += sum(answer.sampled for answer in group.finished)
        del self._groups[group.name], self._of[group.number]

    @property
    def queued(self) -> list[int]:
        """Version tags of the answers that wait for room."""
        return list(self._waiting.tags)

    def admits(self, versions: Iterable[int]) -> dict[int, int]:
        """Answers of new groups that the ledger would take now, by tag."""
        needed = groups_still_needed(self._ledger, self._costs.steps)
        free = {version: min(needed, self._ledger.free(Version(version))) for version in versions}
        return {version: groups * self._psrl.offered_trajectories for version, groups in free.items()}

    @property
    def in_flight(self) -> int:
        return len(self._groups)
