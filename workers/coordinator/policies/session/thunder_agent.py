"""Hang sessions of an instance whose KV cache they overflow, the cheapest first, and let them continue when there is
room (ThunderAgent, as PSRL has it).

For an instance of capacity T with U tokens in use, over its running sessions:

    shared    = max(0, sum of generating - U)      what generating sessions have in common, from prefix caching
    active    = sum of generating + env_token_weight * sum of those at their environment
    remaining = T - (active - shared + buffer_per_session * sessions)

While `remaining` is negative, the next session is hung: those at their environment first, then the generating, the
smallest first; `shared` stays as it was. A hung session needs its tokens and the buffer to continue.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .....schemas.config import ContinueScope
from .....schemas.ids import InstanceId, SessionId
from .contract import Doing, InstanceRoom, SessionPlan, SessionSnapshot, SessionView


@dataclass(frozen=True, slots=True)
class ThunderAgent:
    """`buffer_per_session`: tokens kept free for each session's next turn."""

    env_token_weight: float = 1.0
    buffer_per_session: int = 0
    scope: ContinueScope = ContinueScope.BUCKETED

    def __call__(self, snapshot: SessionSnapshot) -> SessionPlan:
        hang: list[SessionId] = []
        left: dict[InstanceId, int] = {}
        for name in sorted(snapshot.instances):
            chosen, left[name] = self._overflow(snapshot.instances[name], _running(snapshot, name))
            hang += chosen
        hung = sorted(
            (one for one in snapshot.sessions if one.hung and one.instance in snapshot.instances), key=_smallest_first
        )
        fits = [one for one in hung if self._need(one) <= self._largest(snapshot.instances, one)]
        place = self._anywhere if self.scope is ContinueScope.GLOBAL else self._where_they_were
        too_large = tuple(one.session for one in hung if one not in fits)
        return SessionPlan(hang=tuple(hang), go_on=place(fits, left), too_large=too_large)

    def _overflow(self, room: InstanceRoom, running: Sequence[SessionView]) -> tuple[list[SessionId], int]:
        """Who is hung, and the room that is left then."""
        shared = max(0, sum(one.tokens for one in running if one.doing is Doing.GENERATE) - room.used)
        order = sorted(running, key=lambda one: (one.doing is Doing.GENERATE, *_smallest_first(one)))
        chosen: list[SessionId] = []
        while (left := self._left(room, order[len(chosen) :], shared)) < 0 and len(chosen) < len(order):
            chosen.append(order[len(chosen)].session)
        return chosen, left

    def _left(self, room: InstanceRoom, running: Iterable[SessionView], shared: int) -> int:
        weights = {Doing.GENERATE: 1.0, Doing.ENV: self.env_token_weight}
        counted = list(running)
        active = int(sum(weights[one.doing] * one.tokens for one in counted))
        return room.capacity - (active - shared + self.buffer_per_session * len(counted))

    def _where_they_were(
        self, hung: Sequence[SessionView], left: Mapping[InstanceId, int]
    ) -> dict[SessionId, InstanceId]:
        """The smallest first, as long as they fit. One that does not is passed over."""
        free = {name: room for name, room in left.items() if room > self.buffer_per_session}
        placed: dict[SessionId, InstanceId] = {}
        for one in hung:
            if self._need(one) <= free.get(one.instance, 0):
                free[one.instance] -= self._need(one)
                placed[one.session] = one.instance
        return placed

    def _anywhere(self, hung: Sequence[SessionView], left: Mapping[InstanceId, int]) -> dict[SessionId, InstanceId]:
        """As many of the smallest as fit in sum, then the largest of them first, each where most room is."""
        free = {name: room for name, room in left.items() if room > self.buffer_per_session}
        total, chosen = sum(free.values()), []
        for one in hung:
            if self._need(one) <= total:
                total -= self._need(one)
                chosen.append(one)
        placed: dict[SessionId, InstanceId] = {}
        for one in reversed(chosen):
            widest = max(free, key=lambda name: (free[name], name), default=None)
            if widest is None or self._need(one) > free[widest]:
                continue
            free[widest] -= self._need(one)
            placed[one.session] = widest
            if free[widest] <= self.buffer_per_session:
                del free[widest]
        return placed

    def _need(self, one: SessionView) -> int:
        return one.tokens + self.buffer_per_session

    def _largest(self, instances: Mapping[InstanceId, InstanceRoom], one: SessionView) -> int:
        """Capacity of the largest instance that it may continue on, were that empty."""
        if self.scope is ContinueScope.BUCKETED:
            return instances[one.instance].capacity
        return max(room.capacity for room in instances.values())


def _running(snapshot: SessionSnapshot, instance: InstanceId) -> list[SessionView]:
    return [one for one in snapshot.sessions if one.instance == instance and not one.hung]


def _smallest_first(one: SessionView) -> tuple[int, SessionId]:
    """Of equal ones always in the same order."""
    return one.tokens, one.session
