"""Groups with answers that are in no engine, in the order in which the coordinator serves those that wait for room
(`coordinator/waiting.py`), whose rules these are: there calls wait, here groups."""

import heapq
from dataclasses import dataclass
from itertools import count

from ...schemas.config import RoutingStrategy
from ...schemas.ids import GroupId, InstanceId, Version
from ...schemas.messages.rollout import RouteRequest
from ..coordinator.waiting import Rank, rank
from .engine import Sequence as Answer
from .fleet import SimulatedFleet


@dataclass(eq=False)
class Group:
    number: int
    name: GroupId
    tag: Version
    answers: list[Answer]
    homeless: list[Answer]
    """They are in no engine and have to be routed."""
    finished: list[Answer]
    prefer: InstanceId | None = None
    """Where homeless ones go if there is room."""


class Waiting:
    def __init__(self, fleet: SimulatedFleet, strategy: RoutingStrategy) -> None:
        self._fleet, self._strategy = fleet, strategy
        self._heap: list[tuple[int, Rank, int, Group]] = []
        self._numbers = count()

    def add(self, group: Group, homeless: list[Answer], prefer: InstanceId | None = None) -> None:
        group.prefer = prefer
        if not group.homeless:
            group.homeless = list(homeless)
            by_tag = group.tag if self._strategy.enable_multi_priority_queue else 0
            order = rank(self._question(group))
            heapq.heappush(self._heap, (by_tag, order, next(self._numbers), group))
        else:
            group.homeless += homeless

    def serve(self) -> None:
        """One that finds no room stands for all with its tag or a newer one: whatever they may go to, it may go to as
        well. One whose group sticks to an instance stands for itself alone."""
        still, closed = [], max((group.tag for *_, group in self._heap), default=0) + 1
        oldest = min((group.tag for *_, group in self._heap), default=0)
        while self._heap and closed > oldest:
            entry = heapq.heappop(self._heap)
            group = entry[-1]
            if group.homeless and group.tag < closed:
                question = self._question(group)
                group.homeless = self._fleet.place(question, group.homeless)
                if group.homeless and not self._fleet.is_pinned(question):
                    closed = group.tag
            if group.homeless:
                still.append(entry)
        for entry in still:
            heapq.heappush(self._heap, entry)

    def _question(self, group: Group) -> RouteRequest:
        return self._fleet.question(group.name, group.tag, group.homeless, group.prefer)

    @property
    def tags(self) -> list[Version]:
        """Of every answer that waits."""
        return [group.tag for *_, group in self._heap for _ in group.homeless]
