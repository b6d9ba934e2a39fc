"""A state machine is a name, a state and a table of legal transitions. Used by every life that has states: trajectory,
instance, rollout host, run.

Promise: a state changes only along the table; anything else is a defect of ours and raises `InvariantViolated`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

from ..schemas.errors import InvariantViolated

State = TypeVar("State", bound=StrEnum)
Table = Mapping[State, frozenset[State]]
"""From each state, the states that may follow. A state without any is final."""


class Machine(Generic[State]):
    def __init__(self, name: str, table: Table[State], state: State) -> None:
        self._name, self._table, self._state = name, table, state

    @property
    def state(self) -> State:
        return self._state

    @property
    def final(self) -> bool:
        return not self._table[self._state]

    def may(self, state: State) -> bool:
        return state in self._table[self._state]

    def to(self, state: State) -> None:
        """Raises `InvariantViolated` for a transition that is not in the table."""
        if not self.may(state):
            allowed = ", ".join(sorted(self._table[self._state])) or "none, it is final"
            raise InvariantViolated(f"{self._name}: {self._state} -> {state} is not allowed; allowed: {allowed}")
        self._state = state


def reachable(table: Table[State], start: State) -> frozenset[State]:
    """Every state that some legal path from `start` leads to, itself included."""
    found: set[State] = set()
    open_states = [start]
    while open_states:
        state = open_states.pop()
        if state not in found:
            found.add(state)
            open_states += sorted(table[state])
    return frozenset(found)
